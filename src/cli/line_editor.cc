#include "cli/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "cli/launch.h"

namespace inflight::cli {
namespace {

// Inside the editor a pasted newline is this sign, one column wide; it becomes a newline again when the line is taken.
constexpr wchar_t kNewlineSign = L'\u21b5';
constexpr std::string_view kNewlineText = "\u21b5";

constexpr std::string_view kPasteOn = "\x1b[?2004h";
constexpr std::string_view kPasteOff = "\x1b[?2004l";

// Bracketed paste: everything up to ESC [ 201 ~ goes into the line as it is, whatever its keys are bound to.
unsigned char insert_paste(EditLine* editor, int) {
  static constexpr std::wstring_view kEnd = L"\x1b[201~";
  std::wstring text;
  wchar_t c = 0;
  while (!text.ends_with(kEnd) && el_wgetc(editor, &c) == 1) text += c;
  if (text.ends_with(kEnd)) text.resize(text.size() - kEnd.size());
  std::wstring shown;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == L'\r' && i + 1 < text.size() && text[i + 1] == L'\n') continue;
    if (text[i] == L'\r' || text[i] == L'\n') shown += kNewlineSign;
    else if (text[i] == L'\t') shown += L"    ";
    else if (text[i] >= 0x20 && text[i] != 0x7f) shown += text[i];
  }
  while (shown.ends_with(kNewlineSign)) shown.pop_back();
  el_winsertstr(editor, shown.c_str());
  return CC_REFRESH;
}

// The editor works in wide characters: the locale must be one of UTF-8.
void use_utf8_locale() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

struct LineEditor::Terminal {
  EditLine* editor = nullptr;
  History* history = nullptr;
  FILE* screen = nullptr;
  std::string prompt;
  bool brackets = false;  // the terminal may know bracketed paste

  static char* current_prompt(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<Terminal*>(self)->prompt.data();
  }

  explicit Terminal(FILE* to) : screen(to) {
    const char* term = std::getenv("TERM");
    brackets = term && *term && std::strcmp(term, "dumb") != 0;
    use_utf8_locale();
    editor = el_init("inflight", stdin, screen, screen);
    history = history_init();
    HistEvent event;
    history_w_size(event);
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT, current_prompt);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_SIGNAL, 1);  // it restores the terminal and redraws after a resize, then passes signals on to our handlers
    el_set(editor, EL_HIST, ::history, history);
    el_set(editor, EL_ADDFN, "inflight-paste", "Insert pasted text", insert_paste);
    el_set(editor, EL_BIND, "\\e[200~", "inflight-paste", nullptr);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_source(editor, nullptr);  // the user's own ~/.editrc
  }

  ~Terminal() {
    history_end(history);
    el_end(editor);
  }

  void write(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), screen);
    std::fflush(screen);
  }

 private:
  void history_w_size(HistEvent& event) {
    ::history(history, &event, H_SETSIZE, 1000);
    ::history(history, &event, H_SETUNIQUE, 1);
  }
};

LineEditor::LineEditor() {
  take_terminal();
  FILE* screen = ::isatty(STDERR_FILENO) ? stderr : ::isatty(STDOUT_FILENO) ? stdout : nullptr;  // standard output is for answers
  if (::isatty(STDIN_FILENO) && screen) terminal_ = std::make_unique<Terminal>(screen);
}

LineEditor::~LineEditor() = default;

LineEditor::Read LineEditor::read(const std::string& prompt) {
  if (terminal_) {
    Terminal& terminal = *terminal_;
    terminal.prompt = prompt;
    if (terminal.brackets) terminal.write(kPasteOn);
    int count = 0;
    errno = 0;
    const char* text = el_gets(terminal.editor, &count);
    const bool interrupted = !text && errno == EINTR;
    if (terminal.brackets) terminal.write(kPasteOff);
    if (!text || count <= 0) {
      if (interrupted) el_set(terminal.editor, EL_PREP_TERM, 0);  // back to the terminal's own mode, as after a line
      return {interrupted ? End::kInterrupted : End::kClosed, ""};
    }
    std::string line(text, static_cast<std::size_t>(count));
    while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
    for (std::size_t at = 0; (at = line.find(kNewlineText, at)) != std::string::npos; ++at) line.replace(at, kNewlineText.size(), "\n");
    return {End::kLine, std::move(line)};
  }

  for (;;) {
    if (const std::size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return {End::kLine, std::move(line)};
    }
    if (closed_) {
      if (pending_.empty()) return {End::kClosed, ""};
      return {End::kLine, std::exchange(pending_, "")};
    }
    char buffer[4096];
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count > 0) pending_.append(buffer, static_cast<std::size_t>(count));
    else if (count < 0 && errno == EINTR) return {End::kInterrupted, ""};
    else closed_ = true;
  }
}

void LineEditor::remember(const std::string& line) {
  if (!terminal_) return;
  std::string shown = line;
  for (std::size_t at = 0; (at = shown.find('\n', at)) != std::string::npos; at += kNewlineText.size()) shown.replace(at, 1, kNewlineText);
  HistEvent event;
  ::history(terminal_->history, &event, H_ENTER, shown.c_str());
}

}  // namespace inflight::cli
