// The recipe "add a GPU" (docs/adding-a-gpu.md), followed with a chip that does not exist: one data sheet, a profile
// derived by it, and everything downstream takes the chip's properties instead of Hopper's.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "bases.hpp"
#include "pipewright/plan.hpp"

namespace new_gpu_test {

using namespace pipewright;

namespace {

profile::Profile measured() { return profile::load(SOURCE_ROOT "/profiles/h200-sxm.json", {"test", 0}); }

profile::DataSheet made_up() {
  constexpr std::string_view source = "made up";
  profile::DataSheet s;
  s.profile = "x500";
  s.device = profile::device("NVIDIA X500", 160, 1536, 100, Bytes(96 << 20));
  s.memory_bytes = {200e9, source};
  s.memory_gbytes_per_s = {7200, source};
  s.bf16_tflops = {1979, source};
  s.fp8_tflops = {3958, source};
  s.nvlink_gbytes_per_s = {900, source};
  s.host_gbytes_per_s = {450, source};
  return s;
}

/// As a user meets it: written, read back, under a name that says nothing.
profile::Profiles profiles_of(const profile::DataSheet& sheet) {
  auto derived = profile::derive(measured(), sheet);
  derived.name = "mine";
  return profile::Profiles({profile::parse(profile::to_json(derived), "mine.json")});
}

scenario::Scenario on(const profile::Profiles& profiles, std::string_view base, std::string_view changes = {}) {
  auto s = test::scenario(base, changes);
  s.cluster.profile = profiles.first().name;
  predict::name_gpu(s, profiles.device());
  return s;
}

std::set<std::string> findings(const scenario::Scenario& s) {
  std::set<std::string> ids;
  for (const auto& finding : plan::check(s)) ids.insert(finding.rule);
  return ids;
}

std::set<std::int64_t> bytes_of(const model::Stages& stages, const std::string& owner) {
  std::set<std::int64_t> bytes;
  for (const auto& piece : stages.pieces)
    for (const auto& tensor : piece.tensors)
      if (tensor.owner < stages.owners.size() && stages.owners[tensor.owner] == owner) bytes.insert(tensor.bytes.value);
  return bytes;
}

double least_share(const model::Stages& stages) {
  double least = 1;
  for (const auto& piece : stages.pieces)
    for (const auto& kernel : piece.kernels) least = std::min(least, kernel.sm_share);
  return least;
}

}  // namespace

TEST_CASE("a derived profile is the chip's: its properties, its memory, and it is faster as the data sheets say") {
  const auto h200 = measured();
  const auto sheet = made_up();
  const auto x500 = profile::derive(h200, sheet);
  CHECK(x500.device == sheet.device);
  CHECK(x500.memory == Bytes(200'000'000'000));
  CHECK(x500.origin == profile::Origin::derived);
  const auto ratio = [&](const profile::Key& key) { return x500.time(key)->ns / h200.time(key)->ns; };
  const double large_product = ratio({"gemm.bf16.tn", {8192, 8192, 8192}});
  CHECK(large_product > 0.5);
  CHECK(large_product < 0.6);
  CHECK(ratio({"fill", {std::int64_t{1} << 30}}) == doctest::Approx(4800.0 / 7200).epsilon(0.03));
  CHECK(ratio({"fill", {4096}}) > 0.9);  // as the smallest measured, 512 KiB: a fifth of it is bandwidth
  CHECK(ratio({"send_recv.nvlink", {std::int64_t{1} << 30}}) == doctest::Approx(0.5).epsilon(0.05));
  CHECK(x500.link("nvlink")->gbytes_per_s == doctest::Approx(2 * h200.link("nvlink")->gbytes_per_s));
  CHECK(x500.scalars.at("host.cuda_launch_us").value == h200.scalars.at("host.cuda_launch_us").value);
}

TEST_CASE("no kernel gains more than what bounds it, and none where nothing differs") {
  const auto h200 = measured();
  const auto same = profile::derive(h200, profile::data_sheet("h200-sxm"));
  const auto x500 = profile::derive(h200, made_up());
  for (const auto& [name, samples] : h200.samples) {
    for (std::size_t i = 0; i < samples.size(); ++i) CHECK(same.samples.at(name)[i].ns == samples[i].ns);
    if (name.find(".fp8.tn.") != std::string::npos) continue;  // with the sums that the GPU keeps: profile/shipped
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const double factor = x500.samples.at(name)[i].ns / samples[i].ns;
      const double least = profile::family(name).name.starts_with("copy.") ? 64.0 / 450 : 0.5;
      if (factor > 1 || factor < least - 1e-9) FAIL_CHECK(name << " is scaled by " << factor);
    }
  }
}

TEST_CASE(
    "a GPU whose data sheet is not known cannot be derived from; tensor cores without a precision lose its kernels") {
  auto unknown = measured();
  unknown.device.name = "NVIDIA H2000";
  CHECK_THROWS_WITH_AS(profile::derive(unknown, made_up()), doctest::Contains("did you mean \"NVIDIA H200\""),
                       UsageError);
  auto without = made_up();
  without.fp8_tflops.value = 0;
  const auto p = profile::derive(measured(), without);
  CHECK(!p.samples.contains("gemm.fp8.tn"));
  CHECK(p.samples.contains("gemm.bf16.tn"));
}

TEST_CASE("rules go by the GPU, not by the profile's name") {
  const auto blackwell = profiles_of(made_up());
  const profile::Profiles hopper({measured()});
  const char* one_connection = "environment.max-connections";
  const std::string_view unset = "$CUDA_DEVICE_MAX_CONNECTIONS=32";
  CHECK(findings(on(hopper, "tensor", unset)).contains(one_connection));
  CHECK(!findings(on(blackwell, "tensor", unset)).contains(one_connection));
  auto renamed = measured();
  renamed.name = "b200-of-mine";  // a name is no evidence
  CHECK(findings(on(profile::Profiles({renamed}), "tensor", unset)).contains(one_connection));
  // Where nobody knows the GPU the rules warn.
  CHECK(findings(test::scenario("tensor", unset)).contains(one_connection));
}

TEST_CASE("the model's workspaces and shares are the chip's") {
  const auto x500 = profiles_of(made_up());
  const auto& hopper = profile::data_sheet("h200-sxm").device;
  const auto s = on(x500, "tensor");
  const std::int64_t row = 4 * 4096;  // fp32, hidden size: three CTAs' partial sums for each multiprocessor
  const auto ours = bytes_of(model::build(s, x500.device()), "workspace");
  const auto theirs = bytes_of(model::build(s, hopper), "workspace");
  CHECK(ours.contains(3 * 160 * row));
  CHECK(!ours.contains(3 * 132 * row));
  CHECK(theirs.contains(3 * 132 * row));
  const auto overlapped = on(x500, "tensor", "tp_comm_overlap=true");
  CHECK(least_share(model::build(overlapped, x500.device())) == doctest::Approx(144.0 / 160));
  CHECK(least_share(model::build(overlapped, hopper)) == doctest::Approx(116.0 / 132));
}

TEST_CASE("a step is simulated with it, in FP8 too; what no profile has is refused by name") {
  const auto x500 = profiles_of(made_up());
  const profile::Profiles h200({measured()});
  const auto s = on(x500, "dense");
  const auto faster = predict::predict(s, x500), slower = predict::predict(s, h200);
  CHECK(faster.step_ns < slower.step_ns);
  CHECK(faster.step_ns > slower.step_ns / 2);
  CHECK(faster.memory_limit == Bytes(200'000'000'000));
  CHECK(faster.origins.weakest() == "derived");
  const auto fp8 = predict::predict(on(x500, "dense", "fp8=hybrid; fp8_recipe=tensorwise"), x500);
  CHECK(fp8.step_ns < faster.step_ns);
  // What only Blackwell multiplies was measured on no Hopper: the profile lacks it, and says so.
  CHECK_THROWS_WITH_AS(predict::predict(on(x500, "dense", "fp8=e4m3; fp8_recipe=mxfp8"), x500),
                       doctest::Contains("mxfp8"), UsageError);
}

TEST_CASE("a profile that does not say what its GPU is counts as an H200, and the prediction says so") {
  auto silent = measured();
  silent.device = profile::device_named("NVIDIA of a friend");
  const profile::Profiles profiles({silent});
  CHECK(!profiles.knows_device());
  const auto prediction = predict::predict(on(profiles, "dense"), profiles);
  CHECK(std::ranges::any_of(prediction.notes, [](const auto& note) { return note.find("NVIDIA H200") != note.npos; }));
  CHECK(prediction.step_ns == predict::predict(on(profiles, "dense"), profile::Profiles({measured()})).step_ns);
}

}  // namespace new_gpu_test
