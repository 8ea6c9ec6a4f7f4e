// One line after another from a terminal, with editing, history and multi-line paste; plain lines where standard input is none.
#pragma once
#include <memory>
#include <optional>
#include <string>

namespace inflight::cli {

class LineEditor {
 public:
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class End { kLine, kInterrupted, kClosed };  // a line came; Ctrl-C; Ctrl-D or the end of the input
  struct Read {
    End end = End::kClosed;
    std::string line;  // without its newline; a paste of several lines is one line with newlines inside
  };
  // The prompt is shown on a terminal only.
  Read read(const std::string& prompt);
  void remember(const std::string& line);  // for the arrow keys
  bool interactive() const { return terminal_ != nullptr; }

 private:
  struct Terminal;
  std::unique_ptr<Terminal> terminal_;
  std::string pending_;  // bytes read from a pipe past the last line
  bool closed_ = false;
};

}  // namespace inflight::cli
