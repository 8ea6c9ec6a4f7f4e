#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace inflight {
namespace {

Code code_of(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR: return Code::kNotFound;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:   // a limit on file sizes
    case EMFILE:  // too many open files
    case ENFILE:
    case ENOMEM: return Code::kExhausted;
    default: return Code::kInvalidArgument;
  }
}

std::unexpected<Error> system_error(const char* what, const std::string& path, int error) {
  return fail(code_of(error), "cannot {} \"{}\": {}", what, path, std::strerror(error));
}

// A descriptor that bypasses the page cache, or -1: some file systems refuse the flag, others the first read, others want larger blocks.
int open_direct(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (descriptor < 0) return -1;
  alignas(4096) char block[4096];
  if (::pread(descriptor, block, sizeof block, 0) > 0) return descriptor;
  ::close(descriptor);
  return -1;
}

}  // namespace

Result<std::string> read_file(const std::string& path, std::int64_t max_bytes) {
  const InputFile file = TRY(InputFile::open(path));
  if (file.size() > max_bytes) return fail(Code::kCorrupt, "\"{}\" is {} bytes long; at most {} are read of such a file", path, file.size(), max_bytes);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  TRY(file.read_at(text.data(), text.size(), 0));
  return text;
}

bool is_directory(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool is_regular_file(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

Result<InputFile> InputFile::open(const std::string& path, bool direct) {
  int descriptor = direct ? open_direct(path) : -1;
  const bool is_direct = descriptor >= 0;
  if (descriptor < 0) descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return system_error("open", path, errno);
  InputFile file(descriptor, 0, path, is_direct);
  struct stat status;
  if (::fstat(descriptor, &status) != 0) return system_error("inspect", path, errno);
  if (!S_ISREG(status.st_mode)) return fail(Code::kInvalidArgument, "\"{}\" is not a regular file", path);
  file.size_ = status.st_size;
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_), path_(std::move(other.path_)), direct_(other.direct_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  std::swap(direct_, other.direct_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<void> InputFile::read_at(void* into, std::size_t bytes, std::int64_t offset, std::size_t required) const {
  std::size_t done = 0;
  while (done < required) {
    const std::size_t want = std::min<std::size_t>(bytes - done, std::size_t{1} << 30);
    const ssize_t got = ::pread(descriptor_, static_cast<char*>(into) + done, want, offset + static_cast<std::int64_t>(done));
    if (got < 0) {
      if (errno == EINTR) continue;
      return system_error("read", path_, errno);
    }
    if (got == 0)
      return fail(Code::kCorrupt, "\"{}\" ended early: wanted {} bytes at offset {}, got {}; was the file truncated while it was read?", path_, required, offset, done);
    done += static_cast<std::size_t>(got);
  }
  return {};
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  const std::string part = path + ".part";
  const int descriptor = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) return system_error("create", part, errno);
  return OutputFile(descriptor, path);
}

OutputFile::OutputFile(OutputFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink((path_ + ".part").c_str());
}

Result<void> OutputFile::write(const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t wrote = ::write(descriptor_, at, std::min<std::size_t>(bytes, std::size_t{1} << 30));
    if (wrote < 0) {
      if (errno == EINTR) continue;
      return system_error("write", path_, errno);
    }
    at += wrote;
    bytes -= static_cast<std::size_t>(wrote);
  }
  return {};
}

Result<void> OutputFile::commit() {
  const std::string part = path_ + ".part";
  int error = ::fsync(descriptor_) == 0 ? 0 : errno;
  if (::close(std::exchange(descriptor_, -1)) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(part.c_str(), path_.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(part.c_str());
    return system_error("write", path_, error);
  }
  return {};
}

}  // namespace inflight
