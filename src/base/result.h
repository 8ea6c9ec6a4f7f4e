// Values or errors. Every function that can fail returns Result<T>; nothing below cli/ throws, prints, aborts or exits.
//
//     Result<File> open(const std::string& path);
//     Result<void> load(const std::string& path) {
//       File file = TRY(open(path));                                  // returns the error to the caller
//       if (file.size() == 0) return fail(Code::kCorrupt, "\"{}\" is empty; is the download complete?", path);
//       return {};
//     }
#pragma once
#include <fmt/format.h>

#include <expected>
#include <string>
#include <utility>

namespace inflight {

enum class Code {
  kInvalidArgument,  // the caller asked for something that cannot be (exit 2)
  kNotFound,         // a file, tensor or name does not exist (exit 2)
  kCorrupt,          // a file contradicts itself or its neighbours (exit 2)
  kUnsupported,      // well-formed, but nothing here can do it (exit 2)
  kExhausted,        // memory, disk or cache blocks ran out (exit 1)
  kCancelled,        // stopped on request (exit 1)
  kInternal,         // our own bug (exit 1)
};

// A message says what, where, expected against got, and what to do. The first line is the summary.
struct Error {
  Code code = Code::kInternal;
  std::string message;
};

template <class T = void>
using Result = std::expected<T, Error>;

template <class... Args>
[[nodiscard]] std::unexpected<Error> fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return std::unexpected(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

// The same error, its message preceded by where it happened: "loading X: <message>".
[[nodiscard]] inline std::unexpected<Error> fail_at(std::string_view where, Error error) {
  error.message = fmt::format("{}: {}", where, error.message);
  return std::unexpected(std::move(error));
}

}  // namespace inflight

// Yields the value of a Result, or returns its error from the enclosing function. May be nested.
#define TRY(expression) TRY_NAMED_(expression, TRY_CONCAT_(try_result_, __COUNTER__))
#define TRY_CONCAT_(a, b) TRY_CONCAT_AGAIN_(a, b)
#define TRY_CONCAT_AGAIN_(a, b) a##b
#define TRY_NAMED_(expression, name)                                       \
  ({                                                                       \
    auto&& name = (expression);                                            \
    if (!name) [[unlikely]]                                                \
      return std::unexpected(std::move(name).error());                     \
    *std::move(name);                                                      \
  })
