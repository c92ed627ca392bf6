// A command called as a function instead of from a shell: files that are texts in memory, standard output as a string,
// nothing on standard error, and a flag that stops it. Without an Embedded in its thread a command is a program's.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <string>

namespace pipewright::cli {

struct Embedding {
  std::map<std::string, std::string> files;  ///< these paths read as these texts
  std::string output;                        ///< what was written to "-"
  std::atomic<bool> stop = false;            ///< any thread may set it
};

/// While it lives, commands of this thread run within `embedding`.
class Embedded {
 public:
  explicit Embedded(Embedding& embedding);
  ~Embedded();
  Embedded(const Embedded&) = delete;
  Embedded& operator=(const Embedded&) = delete;
};
Embedding* embedding();  ///< null: a program

/// What stop_if_asked() throws.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};
/// Between the parts of long work.
void stop_if_asked();
/// The same for threads that work for this one.
class StopCheck {
 public:
  StopCheck() : embedding_(embedding()) {}
  void operator()() const {
    if (embedding_ != nullptr && embedding_->stop) throw Interrupted();
  }

 private:
  const Embedding* embedding_;
};

/// A file's content, or a text of the embedding's.
std::string content_of(const std::string& path);

}  // namespace pipewright::cli
