// What the plugin libinflight_mpi.so offers the program: C functions in a table, so that neither needs the other's C++ or, on the program's side, any MPI.
// The exported symbol `inflight_mpi_table` is a const InflightMpiTable.
#pragma once
#include <stdint.h>

#define INFLIGHT_MPI_VERSION 1

extern "C" struct InflightMpiTable {
  int32_t version;  // INFLIGHT_MPI_VERSION; stays first
  // Functions of the table are called by one thread at a time. Where one returns a text, nullptr means that it went well; the text lives until the next call.
  const char* (*start)();
  int32_t (*rank)();
  int32_t (*size)();
  // A ticket, or -1. Messages of a pair of ranks and a tag arrive in order.
  int64_t (*send)(int32_t rank, int32_t tag, const void* data, int64_t bytes);
  int64_t (*receive)(int32_t rank, int32_t tag, void* data, int64_t bytes);
  int32_t (*done)(int64_t ticket);  // 0 moving, 1 done, -1 broken
  const char* (*problem)();         // why the last -1
  const char* (*finish)();          // all ranks together
  const char* (*library)();         // name and version of the MPI
};
