// libinflight_mpi.so: the table of comm/mpi/table.h over MPI. The only file that knows MPI; the program opens the library it becomes.
#include <mpi.h>

#include <climits>
#include <string>
#include <vector>

#include "comm/mpi/table.h"

namespace {

MPI_Comm ours = MPI_COMM_NULL;  // apart from whatever else uses MPI in this process
std::string text;
std::vector<MPI_Request> requests;  // by ticket
std::vector<int64_t> expected;      // bytes of a receive, -1 of a send
std::vector<int64_t> unused;        // tickets

const char* error_text(const char* what, int code) {
  char reason[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  MPI_Error_string(code, reason, &length);
  text = std::string(what) + ": " + reason;
  return text.c_str();
}

const char* start() {
  int provided = 0, already = 0;
  MPI_Initialized(&already);
  if (!already)
    if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided); code != MPI_SUCCESS) return error_text("MPI_Init_thread", code);
  MPI_Query_thread(&provided);
  if (provided < MPI_THREAD_SERIALIZED) {
    text = "this MPI allows no calls from several threads (MPI_THREAD_SERIALIZED)";
    return text.c_str();
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (const int code = MPI_Comm_dup(MPI_COMM_WORLD, &ours); code != MPI_SUCCESS) return error_text("MPI_Comm_dup", code);
  MPI_Comm_set_errhandler(ours, MPI_ERRORS_RETURN);
  return nullptr;
}

int32_t rank() {
  int rank = 0;
  MPI_Comm_rank(ours, &rank);
  return rank;
}

int32_t size() {
  int size = 1;
  MPI_Comm_size(ours, &size);
  return size;
}

int64_t ticket_for(int code, MPI_Request request, int64_t bytes) {
  if (code != MPI_SUCCESS) {
    error_text("starting a message", code);
    return -1;
  }
  if (unused.empty()) {
    requests.push_back(request);
    expected.push_back(bytes);
    return static_cast<int64_t>(requests.size()) - 1;
  }
  const int64_t ticket = unused.back();
  unused.pop_back();
  requests[static_cast<size_t>(ticket)] = request;
  expected[static_cast<size_t>(ticket)] = bytes;
  return ticket;
}

int64_t send(int32_t to, int32_t tag, const void* data, int64_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = bytes > INT_MAX ? MPI_ERR_COUNT : MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, ours, &request);
  return ticket_for(code, request, -1);
}

int64_t receive(int32_t from, int32_t tag, void* data, int64_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = bytes > INT_MAX ? MPI_ERR_COUNT : MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, ours, &request);
  return ticket_for(code, request, bytes);
}

int32_t done(int64_t ticket) {
  int complete = 0, count = 0;
  MPI_Status status;
  const int code = MPI_Test(&requests[static_cast<size_t>(ticket)], &complete, &status);
  if (code == MPI_SUCCESS && !complete) return 0;
  unused.push_back(ticket);
  if (code != MPI_SUCCESS) {
    error_text("moving a message", code);
    return -1;
  }
  const int64_t bytes = expected[static_cast<size_t>(ticket)];
  if (bytes < 0) return 1;
  MPI_Get_count(&status, MPI_BYTE, &count);
  if (count == bytes) return 1;
  text = std::to_string(count) + " bytes came where " + std::to_string(bytes) + " were expected";
  return -1;
}

const char* problem() { return text.c_str(); }

const char* finish() {
  MPI_Comm_free(&ours);
  const int code = MPI_Finalize();
  return code == MPI_SUCCESS ? nullptr : error_text("MPI_Finalize", code);
}

const char* library() {
  char name[MPI_MAX_LIBRARY_VERSION_STRING + 1] = {};
  int length = 0;
  MPI_Get_library_version(name, &length);
  text = name;
  return text.c_str();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const InflightMpiTable inflight_mpi_table = {
    .version = INFLIGHT_MPI_VERSION,
    .start = start,
    .rank = rank,
    .size = size,
    .send = send,
    .receive = receive,
    .done = done,
    .problem = problem,
    .finish = finish,
    .library = library,
};
