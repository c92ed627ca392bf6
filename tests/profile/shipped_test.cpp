// The profiles that come with the program: readable, and what is derived is derived from the H200 as it is now.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>

#include "pipewright/profile.hpp"

namespace shipped_test {

using namespace pipewright;
using namespace pipewright::profile;

namespace {

Profile shipped(const std::string& name) {
  const std::string path = std::string(std::getenv("PROFILES")) + "/" + name + ".json";
  return parse(read_file(path), path);
}

}  // namespace

TEST_CASE("machines that nobody named lie further apart than one machine's runs") {
  for (const DataSheet& sheet : data_sheets()) {
    CAPTURE(sheet.profile);
    const Profile p = shipped(sheet.profile), derived = derive(shipped("h200-sxm"), sheet);
    CHECK(p.scalars.at("host.spread").value > p.scalars.at("host.run_spread").value);
    CHECK(derived.scalars.at("host.spread").value == p.scalars.at("host.spread").value);
  }
}

TEST_CASE("products whose rows are no multiple of 16 bytes take far longer than the next that are, or nobody knows") {
  std::mt19937 random(5);
  const auto any = [&] { return 2048 + 8 * static_cast<std::int64_t>(random() % 1024); };
  for (const char* name : {"h200-sxm", "h100-sxm", "b200-sxm"}) {
    const Profile p = shipped(name);
    for (const Family& f : families()) {
      if (f.contiguous.empty() || !p.samples.contains(f.name)) continue;
      const std::size_t first = f.dims.size() - 3;  // of grouped products: behind the experts
      for (int i = 0; i < 10; ++i) {
        std::vector<std::int64_t> dims(first, 8);
        for (int d = 0; d < 3; ++d) dims.push_back(any());
        const auto aligned = *p.time({f.name, dims});
        dims[f.contiguous[random() % f.contiguous.size()]] -= std::int64_t{1} << random() % 3;
        const auto other = *p.time({f.name, dims});
        CAPTURE(f.name);
        CAPTURE(other.note);
        CHECK((other.ns > 1.5 * aligned.ns || (other.spread > 1 && other.origin == Origin::derived)));
      }
    }
  }
}

TEST_CASE("h100-sxm.json is what was measured on an H100, and `pipewright profile derive h200-sxm` for the rest") {
  const Profile own = shipped("h100-sxm");
  const auto differences =
      diff(parse(to_json(with_measured(derive(shipped("h200-sxm"), data_sheet("h100-sxm")), {own})), "derived"), own);
  CHECK_MESSAGE(differences.empty(), differences.size() << " entries differ, first " << differences.front().what);
}

TEST_CASE(
    "the H100: products, attention, what memory bounds and NVLink are measured, the rest says that it is derived") {
  const Profile p = shipped("h100-sxm");
  CHECK(p.origin == Origin::measured);
  CHECK(p.clocks_for("fp8")->rows.back().matrix < shipped("h200-sxm").clocks_for("fp8")->rows.back().matrix);
  CHECK(p.scalars.at("clocks.law_spread").value == doctest::Approx(0.16).epsilon(0.1));  // other chips are told apart
  std::size_t measured = 0;
  for (const auto& [name, samples] : p.samples)
    for (const auto& s : samples) {
      if (s.origin == Origin::measured)
        ++measured;
      else
        CHECK((s.origin == Origin::derived && s.source.starts_with("h200-sxm")));
    }
  CHECK(measured > 7000);
  CHECK(p.time({"gemm.bf16.tn", {28672, 4096, 8192}})->origin == Origin::measured);
  CHECK(p.time({"gemm.fp8.tn.acc_bf16", {8192, 28672, 4096}})->origin == Origin::derived);
  for (const auto& [name, scalar] : p.scalars)
    if (name.starts_with("host.") || name.find(".copy_") != std::string::npos ||
        name.find("shared host memory") != std::string::npos)
      CHECK_MESSAGE(scalar.origin == Origin::derived, name);
    else if (name.starts_with("contention.") || name.starts_with("memory.outside.nccl"))
      CHECK_MESSAGE(scalar.origin == Origin::measured, name);
}

TEST_CASE(
    "the law of another memory beside the same chip is as far off as a derived profile says, for measured kernels") {
  const Profile derived = derive(shipped("h200-sxm"), data_sheet("h100-sxm")), own = shipped("h100-sxm");
  struct Errors {
    double squares = 0, sum = 0, stated = 0;
    int count = 0;
  };
  std::map<bool, Errors> by_memory;
  for (const auto& [name, samples] : own.samples) {
    const auto load = family(name).load;
    if (load != Load::memory && load != Load::matrix) continue;
    const auto& list = derived.samples.at(name);
    for (const auto& s : samples) {
      if (s.origin != Origin::measured) continue;
      const auto same = std::find_if(list.begin(), list.end(), [&](const Sample& d) { return d.dims == s.dims; });
      if (same == list.end()) continue;  // an H200 has no such sample
      Errors& e = by_memory[load == Load::memory];
      const double off = std::log(s.ns / same->ns);
      e.squares += off * off, e.sum += off, e.stated += same->spread * same->spread, ++e.count;
    }
  }
  for (const auto& [memory, e] : by_memory) {
    const double rms = std::sqrt(e.squares / e.count), stated = std::sqrt(e.stated / e.count);
    MESSAGE((memory ? "memory: " : "products: ") << e.count << " kernels, rms " << rms << ", mean " << e.sum / e.count);
    CHECK(e.count > 1500);
    CHECK(rms < (memory ? 0.065 : 0.042));
    CHECK(rms < 1.1 * stated);
    CHECK(std::abs(e.sum / e.count) < 0.02);
  }
}

TEST_CASE(
    "Blackwell: published or derived, with source and error; what is only derived is derived from the H200 as it is "
    "now") {
  for (const std::string name : {"b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72"}) {
    const Profile p = shipped(name), derived = derive(shipped("h200-sxm"), data_sheet(name));
    CHECK(p.device == data_sheet(name).device);
    CHECK(p.versions.contains("aiconfigurator"));
    std::size_t published = 0;
    for (const auto& [family_name, samples] : p.samples) {
      for (const auto& s : samples) {
        CHECK((s.origin == Origin::published || s.origin == Origin::derived));
        CHECK(!s.source.empty());
        if (s.origin == Origin::published) ++published;
      }
    }
    CHECK(published > 1000);
    for (const char* untouched : {"rmsnorm.forward", "swiglu.backward", "adam", "copy.d2h"}) {
      const auto& now = derived.samples.at(untouched);
      REQUIRE(p.samples.at(untouched).size() == now.size());
      for (std::size_t i = 0; i < now.size(); ++i)
        CHECK(p.samples.at(untouched)[i].ns == doctest::Approx(now[i].ns).epsilon(1e-3));
    }
    // Published products: dgrad and wgrad take as much longer than the forward one as is derived now.
    for (const std::string plain : {"gemm.bf16.tn", "gemm.fp8.tn"}) {
      const bool bf16 = plain == "gemm.bf16.tn";
      for (const char* variant : {".split", ".nn", ".nt", ".nt.acc_f32", ".nt.acc_bf16", ".acc_f32", ".acc_bf16"}) {
        const std::string other = bf16 ? "gemm.bf16" + std::string(variant) : plain + variant;
        if (!p.samples.contains(other)) continue;
        CAPTURE(other);
        for (std::size_t i = 0; i < p.samples.at(plain).size(); i += 7) {
          const auto& forward = p.samples.at(plain)[i];
          const auto& longer = p.samples.at(other)[i];
          REQUIRE(forward.dims == longer.dims);
          CHECK(longer.ns / forward.ns ==
                doctest::Approx(derived.time({other, forward.dims})->ns / derived.time({plain, forward.dims})->ns)
                    .epsilon(1e-3));
        }
      }
    }
  }
}

TEST_CASE("the split accumulator costs nothing on tensor cores that keep full sums") {
  const Profile h200 = shipped("h200-sxm");
  profile::DataSheet newer = data_sheet("h200-sxm");
  newer.device.compute_capability = 100;
  const Profile full_sums = derive(h200, newer);
  const auto ns = [](const Profile& p, const char* family) { return p.time({family, {8192, 8192, 8192}})->ns; };
  CHECK(ns(full_sums, "gemm.fp8.tn") == doctest::Approx(ns(h200, "gemm.fp8.tn")));
  CHECK(ns(full_sums, "gemm.fp8.tn.split") == doctest::Approx(ns(h200, "gemm.fp8.tn")));
  for (const char* wgrad : {"gemm.fp8.tn.acc_f32", "gemm.fp8.tn.acc_bf16"}) {
    const double less = ns(h200, "gemm.fp8.tn") / ns(h200, "gemm.fp8.tn.split");
    CHECK(less < 0.97);
    CHECK(ns(full_sums, wgrad) == doctest::Approx(ns(h200, wgrad) * less).epsilon(0.01));
  }
  CHECK(ns(derive(h200, data_sheet("h100-sxm")), "gemm.fp8.tn.split") > 1.03 * ns(h200, "gemm.fp8.tn"));
}

TEST_CASE("a newer GPU is faster: large products, attention, memory, collectives") {
  const Key keys[] = {{"gemm.bf16.tn", {8192, 8192, 8192}},
                      {"gemm.fp8.tn", {8192, 8192, 8192}},
                      {"attention.forward.bf16", {1, 8192, 8192, 64, 8, 128}},
                      {"attention.backward.bf16", {1, 8192, 8192, 64, 8, 128}},
                      {"rmsnorm.forward", {16384, 8192}},
                      {"all_gather.nvlink", {4, 1 << 28}},
                      {"gemm.grouped.bf16.tn", {8, 32768, 4096, 7168}}};
  const Profile h200 = shipped("h200-sxm"), b200 = shipped("b200-sxm"), gb200 = shipped("gb200-nvl72"),
                gb300 = shipped("gb300-nvl72");
  for (const auto& key : keys) {
    CAPTURE(key.family);
    CHECK(b200.time(key)->ns < h200.time(key)->ns);
    CHECK(gb200.time(key)->ns < 1.05 * b200.time(key)->ns);
    CHECK(gb300.time(key)->ns < 1.02 * gb200.time(key)->ns);
  }
}

TEST_CASE("matrix products of the H200 are predicted from one another within some percent") {
  const Profile p = shipped("h200-sxm");
  for (const std::string name : {"gemm.bf16.tn", "gemm.bf16.nn", "gemm.bf16.nt.acc_f32", "gemm.fp8.tn"}) {
    const Interpolation how = leave_one_out(name, p.samples.at(name));
    MESSAGE(name << ": error " << how.error << " over " << how.tests);
    CHECK(how.tests > 100);
    CHECK(how.error < 0.05);
  }
}

TEST_CASE("shipped profiles say what their GPU is, as its data sheet does") {
  for (const auto& sheet : data_sheets()) CHECK(shipped(sheet.profile).device == sheet.device);
}

}  // namespace shipped_test
