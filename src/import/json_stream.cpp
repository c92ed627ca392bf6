#include "json_stream.hpp"

#include <simdjson.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "pipewright/base.hpp"

namespace pipewright::traces {
namespace {

class Source {
 public:
  explicit Source(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose) {
    if (!file_) throw refuse(std::string("cannot read: ") + std::strerror(errno));
    note_input(path);
    gzbuffer(file_.get(), 1U << 18U);
  }

  int peek() { return at_ < end_ || fill() ? static_cast<unsigned char>(block_[at_]) : -1; }
  void skip() { ++at_; }
  /// What is left of the block in memory.
  std::string_view rest() { return at_ < end_ || fill() ? std::string_view(block_.data() + at_, end_ - at_) : ""; }
  void skip(std::size_t n) { at_ += n; }

  int next_token() {
    for (;;) {
      const int c = peek();
      if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
      skip();
    }
  }
  void expect(char wanted) {
    if (next_token() != wanted) throw broken();
    skip();
  }

  UsageError broken() {
    if (peek() < 0) return refuse("the file ends in the middle: truncated");
    return refuse("not JSON around byte " + std::to_string(before_ + at_));
  }
  UsageError refuse(const std::string& why) const { return UsageError({path_, 0}, {}, why); }

 private:
  bool fill() {
    before_ += end_;
    at_ = end_ = 0;
    const int got = gzread(file_.get(), block_.data(), static_cast<unsigned>(block_.size()));
    int problem = Z_OK;
    const char* text = gzerror(file_.get(), &problem);
    if (problem == Z_BUF_ERROR) throw refuse("the file ends in the middle: truncated");
    if (got < 0) throw refuse(std::string("cannot read: ") + (problem == Z_ERRNO ? std::strerror(errno) : text));
    end_ = static_cast<std::size_t>(got);
    if (inflates_too_much(before_ + end_, gzoffset(file_.get())))
      throw refuse("unpacks to more than 200 times its size: no trace does");
    constexpr std::size_t longest = std::size_t{8} << 30U;  // bytes; a profiled step of a large model has some GB
    if (before_ + end_ > longest) throw refuse("longer than 8 GiB (unpacked): profile fewer steps");
    return got > 0;
  }

  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
  std::vector<char> block_ = std::vector<char>(std::size_t{1} << 20U);
  std::size_t at_ = 0, end_ = 0, before_ = 0;
};

class Splitter {
 public:
  Splitter(Source& source, const OnValue& on_value) : in_(source), on_value_(on_value) {}

  void document() {
    if (in_.next_token() == '[') {
      array("traceEvents");
    } else {
      in_.expect('{');
      if (in_.next_token() == '}') throw in_.refuse("an empty JSON object");
      do {
        if (in_.next_token() != '"') throw in_.broken();
        value();
        const std::string key(buffer_, 1, buffer_.size() - 2);
        in_.expect(':');
        if (in_.next_token() == '[') {
          array(key);
        } else {
          value();
          hand_out(key, false);
        }
      } while (another('}'));
    }
    if (in_.next_token() >= 0) throw in_.broken();
  }

 private:
  void array(const std::string& key) {
    in_.expect('[');
    if (in_.next_token() == ']') {
      in_.skip();
      return;
    }
    do {
      in_.next_token();
      value();
      hand_out(key, true);
    } while (another(']'));
  }

  bool another(char close) {
    const int c = in_.next_token();
    if (c != ',' && c != close) throw in_.broken();
    in_.skip();
    return c == ',';
  }

  /// Copies one value into the buffer: up to the end of its brackets, its string, or its last character.
  void value() {
    buffer_.clear();
    const int first = in_.peek();
    if (first == '{' || first == '[') return brackets();
    if (first == '"') return string();
    for (int c = first; c >= 0 && std::strchr("+-.eE0123456789aflnrstu", c) != nullptr; c = in_.peek()) take();
    if (buffer_.empty()) throw in_.broken();
  }

  void brackets() {
    int depth = 0;
    do {
      const auto rest = in_.rest();
      if (rest.empty()) throw in_.broken();
      const auto at = rest.find_first_of("\"{}[]");
      append(rest.substr(0, at));
      if (at == std::string_view::npos) continue;
      const char c = rest[at];
      if (c == '"') {
        string();
        continue;
      }
      depth += c == '{' || c == '[' ? 1 : -1;
      take();
    } while (depth > 0);
  }

  void string() {
    take();
    for (;;) {
      const auto rest = in_.rest();
      if (rest.empty()) throw in_.broken();
      const auto at = rest.find_first_of("\"\\");
      append(rest.substr(0, at));
      if (at == std::string_view::npos) continue;
      const bool escape = rest[at] == '\\';
      take();
      if (!escape) return;
      if (in_.peek() < 0) throw in_.broken();
      take();
    }
  }

  void append(std::string_view text) {
    buffer_ += text;
    in_.skip(text.size());
    if (buffer_.size() > most_value) throw in_.refuse("a value of more than 64 MiB: not a trace");
  }
  void take() {
    buffer_ += static_cast<char>(in_.peek());
    in_.skip();
  }
  void hand_out(const std::string& key, bool element) {
    buffer_.reserve(buffer_.size() + simdjson::SIMDJSON_PADDING);
    on_value_(key, buffer_, element);
  }

  static constexpr std::size_t most_value = std::size_t{64} << 20U;
  Source& in_;
  const OnValue& on_value_;
  std::string buffer_;
};

}  // namespace

void stream_json(const std::string& path, const OnValue& on_value) {
  Source source(path);
  Splitter(source, on_value).document();
}

}  // namespace pipewright::traces
