// The Python module's only native part: a command run within the process. Scenarios come as texts, the answer is the
// JSON that the command line would have printed; __init__.py makes dictionaries of both.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "commands.hpp"
#include "pipewright/base.hpp"
#include "pipewright/profile_folders.hpp"
#include "program.hpp"

namespace py = pybind11;
using namespace pipewright;

namespace {

/// What may hold a path, which need not be UTF-8.
py::object text(const std::string& bytes) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogateescape"));
}

/// Exceptions of pipewright/errors.py.
[[noreturn]] void raise(const char* name, const py::tuple& arguments) {
  const py::object type = py::module_::import("pipewright.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(*arguments).ptr());
  throw py::error_already_set();
}

/// A command under way. The caller may have left it (Ctrl-C): whoever is last frees it.
struct Job {
  cli::Embedding embedding;
  std::vector<std::string> words;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  int status = 0;
  std::exception_ptr error;
};

std::atomic<int> left_behind = 0;  // jobs that go on though their caller has left

void work(const std::shared_ptr<Job>& job) {
  int status = 0;
  std::exception_ptr error;
  try {
    status = cli::run_embedded(job->words, job->embedding);
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(job->mutex);
  job->status = status;
  job->error = error;
  job->done = true;
  job->changed.notify_all();
}

/// Until it is done or a signal has raised an exception (false).
bool wait_for(Job& job) {
  constexpr std::chrono::milliseconds tick(20);
  for (;;) {
    {
      const py::gil_scoped_release unlocked;
      std::unique_lock lock(job.mutex);
      if (job.changed.wait_for(lock, tick, [&] { return job.done; })) return true;
    }
    if (PyErr_CheckSignals() != 0) return false;
  }
}

/// Runs `words` in a thread of its own, without the interpreter's lock; this thread looks for signals meanwhile. Ctrl-C
/// is raised at once; the command is asked to stop and ends at its next step, unheard.
py::tuple run(const std::vector<std::string>& words, const std::map<std::string, std::string>& files) {
  const auto job = std::make_shared<Job>();
  job->embedding.files = files;
  job->words = words;
  std::thread worker([job] { work(job); });
  if (!wait_for(*job)) {
    job->embedding.stop = true;
    ++left_behind;
    std::thread([thread = std::move(worker)]() mutable {
      thread.join();
      --left_behind;
    }).detach();
    throw py::error_already_set();
  }
  worker.join();
  try {
    if (job->error) std::rethrow_exception(job->error);
    return py::make_tuple(job->status, job->embedding.output);
  } catch (const UsageError& error) {
    raise("UsageError", py::make_tuple(text(error.what()), text(error.message()), text(error.where().file),
                                       error.where().line, text(error.key()), error.allowed(), text(error.nearest())));
  } catch (const cli::Refused& refusal) {
    raise("Refused", py::make_tuple(text(refusal.what())));
  } catch (const std::bad_alloc&) {
    raise("UsageError", py::make_tuple("the input asks for more memory than this machine gives"));
  } catch (const std::exception& error) {
    raise("InternalError", py::make_tuple(error.what()));
  }
}

[[noreturn]] void end_by_signal() {
  for (const char* stream : {"stdout", "stderr"}) py::module_::import("sys").attr(stream).attr("flush")();
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
  std::abort();
}

/// Before the process ends and takes away what they use. A process that Ctrl-C ends does not wait.
void wait_for_those_left_behind() {
  if (left_behind > 0 &&
      py::getattr(py::module_::import("sys"), "last_type", py::none()).ptr() == PyExc_KeyboardInterrupt)
    end_by_signal();
  while (left_behind > 0) {
    if (PyErr_CheckSignals() != 0) end_by_signal();
    const py::gil_scoped_release unlocked;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

/// The program, as a shell calls it: prints, and Ctrl-C is the program's own.
int main_program(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  std::signal(SIGINT, SIG_DFL);
  const py::gil_scoped_release unlocked;
  return cli::run_program(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.def("run", &run, py::arg("words"), py::arg("files"));
  module.def("main", &main_program, py::arg("words"));
  module.def("use_profiles_of", &profile::use_profiles_of, py::arg("folder"));
  module.def("version", &cli::version_text);
  py::module_::import("atexit").attr("register")(py::cpp_function(&wait_for_those_left_behind));
}
