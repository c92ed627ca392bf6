// Windows of steps over fabricated records, drawn as letters: one kernel a letter, 10 ns each, launched 100 ns before.
//
//   G matrix product   n norm   O optimizer   c copy   a all-gather   s send/receive   f fill of gradients
#include "recorder.hpp"

#include <doctest/doctest.h>

#include <map>
#include <sstream>

namespace recorder_test {

using namespace pipewright::capture;

namespace {

const std::map<char, const char*> kNames = {{'G', "nvjet_sm90_tst_256x128"},
                                            {'n', "_ZN18transformer_engine13normalization24rmsnorm_fwd_tuned_kernel"},
                                            {'O', "_Z25multi_tensor_apply_kernelI11AdamFunctorIfEE"},
                                            {'c', "_ZN2at6native29vectorized_elementwise_kernel_bfloat16_copy"},
                                            {'a', "_Z31ncclDevKernel_AllGather_RING_LL"},
                                            {'s', "_Z22ncclDevKernel_SendRecv"},
                                            {'f', "_ZN2at6native11FillFunctorIfEE"},
                                            {'K', "my_update_kernel"}};

class Program {
 public:
  explicit Program(Window window) : recorder(std::move(window)) {}

  void run(const std::string& letters) {
    for (const char letter : letters) {
      const std::uint32_t correlation = ++count_;
      const std::int64_t start = 1000 + 10 * static_cast<std::int64_t>(count_);
      recorder.add(Recorder::Activity{recorder.intern(kNames.at(letter)), Recorder::Engine::kernel, 0, 7, correlation,
                                      start, start + 8});
      recorder.add(Recorder::Call{correlation, 1, start - 100, start - 95});
      text_ += letter;
    }
  }
  void range(const std::string& name, std::size_t from, std::size_t to) {
    recorder.add(Recorder::Range{recorder.intern(name), static_cast<std::int64_t>(1000 + 10 * from),
                                 static_cast<std::int64_t>(1000 + 10 * to)});
  }

  /// The letters that the recording holds, and how many launches.
  std::string recorded() const {
    std::istringstream in(recorder.text({}));
    std::string line, letters;
    std::size_t launches = 0;
    while (std::getline(in, line)) {
      std::istringstream fields(line);
      std::string what, engine, name, device, stream;
      std::int64_t start = 0;
      fields >> what;
      launches += what == "L";
      if (what != "A") continue;
      fields >> engine >> name >> device >> stream >> start;
      letters += text_[static_cast<std::size_t>((start - 1010) / 10)];
    }
    CHECK(launches == letters.size());
    return letters;
  }

  Recorder recorder;

 private:
  std::string text_;
  std::uint32_t count_ = 0;
};

}  // namespace

TEST_CASE("a step ends after its optimizer and what follows from it, before the next gradients are zeroed") {
  Program p({2, 3, "", ""});
  p.run("nGGnOcaf");
  CHECK(!p.recorder.update(false));
  p.run("nGGOOca");  // the fill belongs to this step
  p.run("fsnGGOc");
  CHECK(!p.recorder.update(false));  // the third step may not be over
  CHECK(p.recorder.steps() == 1);
  p.run("afnG");
  CHECK(p.recorder.update(false));
  CHECK(p.recorder.steps() == 2);
  CHECK(p.recorded() ==
        "fnGGOOca"
        "fsnGGOca");
}

TEST_CASE("optimizers of several groups of parameters are one step") {
  Program p({1, 1, "", ""});
  p.run(
      "GnOcOcnOca"
      "nG");
  CHECK(p.recorder.update(false));
  CHECK(p.recorded() == "GnOcOcnOca");
}

TEST_CASE("what was before the window is forgotten") {
  Program p({5, 5, "", ""});
  for (int step = 0; step < 4; ++step) {
    p.run("fnGGGGOca");
    p.recorder.update(false);
  }
  p.run("fnGOc");
  CHECK(!p.recorder.update(false));
  CHECK(p.recorder.text({}).size() < 3000);
  CHECK(p.recorder.update(true));  // the program ends: so does its last step
  CHECK(p.recorded() == "fnGOc");
}

TEST_CASE("records may come in any order") {
  Program p({1, 1, "", ""});
  const auto at = [&](const char* name, std::int64_t start) {
    p.recorder.add(Recorder::Activity{p.recorder.intern(name), Recorder::Engine::kernel, 0, 7,
                                      static_cast<std::uint32_t>(start), start, start + 5});
  };
  at("adam", 200);
  at("gemm", 300);
  at("gemm", 100);
  CHECK(p.recorder.update(false));
  const std::string text = p.recorder.text({});
  CHECK(text.find("\t100\t105") < text.find("\t200\t205"));
  CHECK(text.find("\t300\t305") == std::string::npos);
}

TEST_CASE("a program's own kernel ends its steps") {
  Program p({2, 2, "^my_update", ""});
  p.run(
      "nnK"
      "nnnK"
      "n");
  CHECK(p.recorder.update(false));
  CHECK(p.recorded() == "nnnK");
}

TEST_CASE("ranges of the program are its steps") {
  Program p({2, 2, "", "iteration"});
  p.run(
      "nnn"
      "GGGG"
      "nn");
  p.range("iteration", 1, 4);
  CHECK(!p.recorder.update(false));
  p.range("other", 1, 9);
  p.range("iteration", 4, 8);
  CHECK(p.recorder.update(false));
  CHECK(p.recorded() == "GGGG");
}

TEST_CASE("without steps everything is kept; a window that is never reached says how far the run came") {
  Program none({3, 4, "", ""});
  none.run("nGnG");
  none.recorder.update(true);
  CHECK(none.recorded() == "nGnG");
  CHECK(none.recorder.text({}).find("M\tsteps\t0\nM\tsteps_seen\t0\n") != std::string::npos);
  Program early({3, 4, "", ""});
  early.run("nGOnGO");
  early.recorder.update(true);
  CHECK(early.recorder.text({}).find("M\tsteps\t0\nM\tsteps_seen\t2\n") != std::string::npos);
}

TEST_CASE("dropped records are told") {
  Program p({1, 1, "", ""});
  p.run("nG");
  p.recorder.dropped(3);
  CHECK(p.recorder.text({}).find("M\tdropped\t3\n") != std::string::npos);
}

}  // namespace recorder_test
