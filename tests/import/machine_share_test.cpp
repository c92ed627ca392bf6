// What an import carries to other runs: the machine's speed, not what one run had of its own.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "pipewright/import.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/validate.hpp"

namespace machine_share_test {

using namespace pipewright;

namespace {

const profile::Profile& h200() {
  static const auto loaded = profile::load("../../profiles/h200-sxm.json", {"test", 0});
  return loaded;
}

traces::Import import(const scenario::Scenario& scenario, const std::vector<traces::Trace>& read) {
  const profile::Profiles lone({h200()});
  return traces::import_traces(scenario, read, {"run", 1.25, ""}, &lone);
}

scenario::Scenario run(const std::string& name) { return scenario::read("../measured/" + name + ".yaml"); }

std::vector<traces::Trace> dense() {
  return {traces::read("data/dense.r1.json.gz"), traces::read("data/dense.r3.json.gz")};
}

/// Errors of the runs on machines of four GPUs, by name.
std::map<std::string, double> errors(const profile::Profiles& profiles) {
  std::map<std::string, double> result;
  for (const auto& entry : std::filesystem::directory_iterator("../measured")) {
    const auto name = entry.path().stem().string();
    if (entry.path().extension() != ".yaml" || name.find('_') == std::string::npos) continue;
    if (std::string("abceqw").find(name.front()) == std::string::npos) continue;
    const auto measured = run(name);
    const auto prediction = predict::estimate(measured, profiles);
    result[name] = validate::predicted_ms(measured, prediction) / validate::measured_ms(measured) - 1;
  }
  return result;
}

double mean(const std::map<std::string, double>& errors) {
  double sum = 0;
  for (const auto& [name, error] : errors) sum += std::abs(error) / static_cast<double>(errors.size());
  return sum;
}

/// Kernels whose name holds `part` take `factor` times as long; what comes later is later.
traces::Trace stretched(traces::Trace trace, const std::string& part, double factor) {
  std::int64_t later = 0;
  for (auto& a : trace.activities) {
    a.start += later;
    if (trace.names[a.name].find(part) == std::string::npos) continue;
    const auto longer = std::llround(static_cast<double>(a.duration) * (factor - 1));
    a.duration += longer;
    later += longer;
  }
  return trace;
}

traces::Trace scaled(traces::Trace trace, double factor) {
  for (auto& a : trace.activities) {
    a.start = std::llround(static_cast<double>(a.start) * factor);
    a.duration = std::llround(static_cast<double>(a.duration) * factor);
  }
  return trace;
}

void scale_step(scenario::Scenario& s, double factor) {
  s.measured->forward_backward_ms *= factor;
  *s.measured->optimizer_ms *= factor;
}

/// With launches, of a host that spends as long on a kernel as the GPU does, times `factor`.
traces::Trace launched(traces::Trace trace, double factor) {
  for (auto& a : trace.activities) a.launch = {std::llround(factor * static_cast<double>(a.start)), 3000, 7};
  return trace;
}

double slowdown(const traces::Import& result) {
  const auto found = result.profile.scalars.find("machine.slowdown");
  return found == result.profile.scalars.end() ? 1 : found->second.value;
}

bool noted(const traces::Import& result, const std::string& text) {
  for (const auto& note : result.notes)
    if (note.find(text) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("after an import no run is predicted worse than cold by half a point, and the mean is not") {
  const auto cold = errors(profile::Profiles({h200()}));
  REQUIRE(cold.size() >= 25);
  const auto check = [&](const std::string& scenario, const std::vector<traces::Trace>& read) {
    const auto imported = errors(profile::Profiles({import(run(scenario), read).profile, h200()}));
    for (const auto& [name, error] : imported) {
      CAPTURE(scenario);
      CAPTURE(name);
      CHECK(std::abs(error) < std::abs(cold.at(name)) + 0.005);
    }
    CHECK(mean(imported) < mean(cold) + 0.0002);
  };
  check("a_pp4v2_m8", dense());
  check("a_pp4v2_m8", {traces::read("data/dense.r1.json.gz")});
  check("e_base", {traces::read("data/moe.r0.json.gz")});
  check("e_ov_dw", {traces::read("data/moe_overlap.r2.json.gz")});
  // Kernels of torch.compile for any shape, which only this run had.
  auto other = dense();
  for (auto& trace : other) trace = stretched(stretched(trace, "mul_silu", 3.4), "sigmoid_silu", 3.8);
  check("a_pp4v2_m8", other);
  for (const double factor : {1.0, 3.0}) {  // host costs of a traced step are its own
    check("e_base", {launched(traces::read("data/moe.r0.json.gz"), factor)});
    check("a_pp4v2_m8", {launched(traces::read("data/dense.r1.json.gz"), factor)});
  }
  // A run whose links or hosts were slow.
  auto slow = run("a_pp4v2_m8");
  scale_step(slow, 1.07);
  const auto imported = errors(profile::Profiles({import(slow, dense()).profile, h200()}));
  for (const auto& [name, error] : imported) CHECK(std::abs(error) < std::abs(cold.at(name)) + 0.005);
}

TEST_CASE("an operation that only this run had so slow keeps its lone time, and is named") {
  const auto result =
      import(run("a_pp4v2_m8"), {stretched(traces::read("data/dense.r1.json.gz"), "sigmoid_silu", 3.8)});
  CHECK(noted(result, "kept the lone time of swiglu.backward rows=4096 ffn=14336: 4."));
  CHECK(result.profile.samples.count("swiglu.backward") == 0);
  CHECK(result.profile.samples.count("gemm.bf16.tn") == 0);  // measured alone
  bool reported = false;
  for (const auto& key : result.keys) reported |= key.key.family == "swiglu.backward";
  CHECK(reported);
}

TEST_CASE("what the profiles lack comes from the run") {
  auto lacking = h200();
  lacking.samples.erase("swiglu.forward");
  const profile::Profiles lone({lacking});
  const auto result = traces::import_traces(run("a_pp4v2_m8"), dense(), {"run", 1.25, ""}, &lone);
  REQUIRE(result.profile.samples.at("swiglu.forward").size() == 1);
  const double alone = h200().time({"swiglu.forward", {4096, 14336}})->ns;
  CHECK(result.profile.samples.at("swiglu.forward").front().ns == doctest::Approx(alone).epsilon(0.1));
}

TEST_CASE("host costs that the profiles lack come from the run, at the reference host's pace") {
  const std::string lacking = "host.forward.swiglu.forward_us";
  auto profile = h200();
  const double known = profile.scalars.at(lacking).value;
  profile.scalars.erase(lacking);
  const profile::Profiles lone({profile});
  const auto trace = traces::read("data/dense.chrome.json.gz");
  for (const double overhead : {1.25, 0.5}) {  // hosts 1 and 2.5 times as slow
    const auto result = traces::import_traces(run("a_pp4v2_m8"), {trace}, {"run", overhead, ""}, &lone);
    CHECK(result.profile.scalars.at(lacking).value == doctest::Approx(known).epsilon(0.25));
    CHECK(result.profile.scalars.count("host.forward.attention.forward_us") == 0);
  }
}

TEST_CASE("host costs that the profiles tell by a shorter name are not taken from the run") {
  const std::string exact = "host.forward.swiglu.forward_us";
  auto profile = h200();
  profile.scalars["host.forward.swiglu_us"] = profile.scalars.at(exact);
  profile.scalars.erase(exact);
  const profile::Profiles lone({profile});
  const auto trace = traces::read("data/dense.chrome.json.gz");
  const auto result = traces::import_traces(run("a_pp4v2_m8"), {trace}, {"run", 1.25, ""}, &lone);
  CHECK(result.profile.scalars.count(exact) == 0);
}

TEST_CASE("the machine's speed shows in its kernels and in its step, and chips differ by little") {
  const auto scenario = run("a_pp4v2_m8");
  auto slow_step = scenario, very_slow_step = scenario;
  scale_step(slow_step, 1.02);
  scale_step(very_slow_step, 1.15);
  auto slow_kernels = dense(), slower_kernels = dense();
  for (auto& trace : slow_kernels) trace = scaled(trace, 1.02);
  for (auto& trace : slower_kernels) trace = scaled(trace, 1.15);
  const double chip = slowdown(import(slow_step, slow_kernels));
  CHECK(chip > 1.002);
  CHECK(chip < 1.02);
  // Kernels that took 1.02 times as long tell so much of chips, whatever the step says.
  CHECK(slowdown(import(very_slow_step, dense())) < 1.005);
  CHECK(slowdown(import(scenario, slow_kernels)) == 1);
  const auto no_chip = import(very_slow_step, slower_kernels);
  CHECK(slowdown(no_chip) == 1);
  CHECK(noted(no_chip, "of this run, not of its chips"));
}

}  // namespace machine_share_test
