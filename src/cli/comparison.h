// A model beside its reference, as `eval --reference` found them: numbers, words, JSON. The page about it: comparison_page.h.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "cli/divergence.h"

namespace inflight::cli {

struct ComparedModel {
  std::string name;                                         // as it was asked for
  std::vector<std::pair<std::string, std::string>> facts;   // how it ran: weights, arithmetic, ...; the same names of both models in the same order
  double nats = 0;                                          // a token
};

struct NamedToken {
  std::int32_t id = 0;
  std::string text;
  double p = 0;  // what the model that chose it gave it
};

struct ComparedToken {
  std::int64_t window = 0, position = 0;     // of the token that was predicted, counted from 0
  double kl = 0;
  std::string before;                        // the text it follows
  std::int32_t id = 0;
  std::string text;
  double p = 0, reference_p = 0;             // what the two gave to it
  NamedToken model, reference;               // what the two expected most
};

struct Comparison {
  ComparedModel model, reference;
  std::string data, mode;
  std::int64_t windows = 0, window = 0;
  std::vector<double> kl;                    // of every scored token, nats; not empty
  std::int64_t same_top = 0;                 // scored tokens with one first choice
  std::vector<ComparedToken> worst;          // largest KL first
  std::vector<Noise> layers;                 // after the embedding, then after each layer, the last after the final norm; empty: the two have other layers

  double kl_mean() const;
  double kl_p99() const;
  double kl_max() const;
  double top1() const;                       // share
};

std::string decibels_text(double value);     // "41.3", "exact"
std::string perplexity_text(double nats);    // of the mean of -log p

// Joined to what eval prints without a reference.
OrderedJson comparison_json(const Comparison& comparison);
// Lines of at most 80 columns.
std::string comparison_text(const Comparison& comparison);

// The layer, counted from 0, whose output has the most decibels less than its input; -1: none has less. Changes from and to no noise at all do not count.
std::int64_t largest_drop(const std::vector<Noise>& layers);

}  // namespace inflight::cli
