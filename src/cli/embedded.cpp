#include "embedded.hpp"

#include "pipewright/base.hpp"

namespace pipewright::cli {
namespace {

thread_local Embedding* of_this_thread = nullptr;

}  // namespace

Embedded::Embedded(Embedding& embedding) { of_this_thread = &embedding; }
Embedded::~Embedded() { of_this_thread = nullptr; }
Embedding* embedding() { return of_this_thread; }

void stop_if_asked() { StopCheck()(); }

std::string content_of(const std::string& path) {
  if (of_this_thread != nullptr)
    if (const auto found = of_this_thread->files.find(path); found != of_this_thread->files.end()) return found->second;
  return read_file(path);
}

}  // namespace pipewright::cli
