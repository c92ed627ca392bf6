// Reading and writing: nothing is lost, nothing wrong is accepted, nothing crashes.
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <random>
#include <set>

#include "fabricate.hpp"

namespace json_test {

using namespace pipewright;
using namespace pipewright::profile;

namespace {

std::string error_of(const std::string& json) {
  try {
    parse(json, "p.json");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

/// A valid document with one sample; `from` replaced by `to`.
std::string with(const std::string& from, const std::string& to) {
  std::string text = R"({"profile": 1, "name": "x", "device": "d", "origin": "measured", "memory_bytes": 1,
    "versions": {}, "provenance": [], "links": [{"name": "nvlink", "latency_us": 1, "gbytes_per_s": 2, "eager_bytes": 3}],
    "clocks": [], "scalars": {"host.cuda_launch_us": {"value": 1, "spread": 0}},
    "families": {"fill": {"samples": [{"bytes": 8, "time_us": 1.5, "spread": 0.1, "count": 3}]}}})";
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("what was written is read back, and written again byte for byte") {
  const Profile p = fabricated();
  const std::string text = to_json(p);
  const Profile q = parse(text, "p.json");
  CHECK(to_json(q) == text);
  CHECK(diff(p, q).size() == diff(q, p).size());
  CHECK(q.memory == p.memory);
  CHECK(q.versions == p.versions);
  CHECK(q.links.at(1).origin == Origin::derived);
  CHECK(q.scalars.at("memory.outside.context_bytes").source == "a \"quoted\" source");
  CHECK(q.interpolation.at("gemm.bf16.tn").error ==
        doctest::Approx(leave_one_out("gemm.bf16.tn", gemm_samples()).error).epsilon(0.01));
  CHECK(q.samples.at("fill").at(3).ns == doctest::Approx(p.samples.at("fill").at(3).ns).epsilon(1e-4));
}

TEST_CASE("any samples survive the way through JSON") {
  const bool passed = rc::check("round trip", [] {
    Profile p;
    p.name = *rc::gen::arbitrary<std::string>();
    p.device.name = "d";
    const auto sizes =
        *rc::gen::unique<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(1, 1'000'000'000'000));
    for (const auto bytes : sizes) {
      Sample s = sample({bytes}, *rc::gen::inRange(1, 1'000'000'000));
      s.origin = *rc::gen::element(Origin::measured, Origin::interpolated, Origin::derived);
      s.source = *rc::gen::element(std::string(), std::string("é\n\""));
      p.samples["memset"].push_back(s);
    }
    const std::string text = to_json(p);
    const Profile q = parse(text, "p.json");
    RC_ASSERT(to_json(q) == text);
    RC_ASSERT(q.samples.count("memset") == p.samples.count("memset"));
    if (!sizes.empty()) RC_ASSERT(q.samples.at("memset").size() == sizes.size());
  });
  CHECK(passed);
}

TEST_CASE("what is wrong is named") {
  CHECK(error_of(with("fill", "fill")) == "accepted");
  CHECK(error_of("{\n\"profile\": 1,\n oops").starts_with("p.json:3: is not JSON"));
  CHECK(error_of("").find("is not JSON") != std::string::npos);
  CHECK(error_of("[]").find("must be an object") != std::string::npos);
  CHECK(error_of(with("\"profile\": 1", "\"profile\": 2")) == "p.json:1: profile: unknown format version; allowed: 1");
  CHECK(error_of(with("memory_bytes", "memory_byte")).starts_with("p.json:1: memory_byte: unknown key"));
  CHECK(error_of(with("memory_bytes", "memory_byte")).ends_with("did you mean \"memory_bytes\"?"));
  CHECK(error_of(with("\"device\": \"d\", ", "")) == "p.json: device: is missing");
  CHECK(error_of(with("\"name\": \"x\"", "\"name\": 7")) == "p.json:1: name: must be a string");
  CHECK(error_of(with("\"fill\"", "\"fil\"")).starts_with("p.json:4: families.fil: unknown kernel family"));
  CHECK(error_of(with("\"bytes\": 8", "\"bytes\": 0"))
            .starts_with("p.json:4: families.fill.samples[0].bytes: must be between 1 and"));
  CHECK(error_of(with("\"bytes\": 8", "\"bytes\": 99999999999999999999"))
            .starts_with("p.json:4: families.fill.samples[0].bytes: must be"));
  CHECK(error_of(with("\"bytes\": 8", "\"bytes\": 8.5")) ==
        "p.json:4: families.fill.samples[0].bytes: must be an integer");
  CHECK(error_of(with("\"bytes\": 8", "\"rows\": 8")).find("unknown key") != std::string::npos);
  CHECK(error_of(with("1.5", "-1.5")).starts_with("p.json:4: families.fill.samples[0].time_us: must be between"));
  CHECK(error_of(with("1.5", "1e999")) ==
        "p.json:4: families.fill.samples[0].time_us: must be a number that 64 bits hold");
  CHECK(error_of(with("\"spread\": 0.1", "\"spread\": \"0.1\"")) ==
        "p.json:4: families.fill.samples[0].spread: must be a number");
  CHECK(error_of(with("\"measured\"", "\"mesured\"")).ends_with("did you mean \"measured\"?"));
  CHECK(error_of(with("\"gbytes_per_s\": 2", "\"gbytes_per_s\": 0"))
            .starts_with("p.json:2: links[0].gbytes_per_s: must be"));
  CHECK(error_of(with("\"value\": 1,", "")) == "p.json:3: scalars.host.cuda_launch_us.value: is missing");
  CHECK(error_of(with("3}]}}", "3}, {\"bytes\": 8, \"time_us\": 1, \"spread\": 0, \"count\": 1}]}}")) ==
        "p.json:4: families.fill.samples: the shape 8 stands twice");
}

TEST_CASE("a number that nobody asks for is refused, with the nearest that is") {
  const auto named = [&](const std::string& name) { return error_of(with("host.cuda_launch_us", name.c_str())); };
  std::set<std::string> shipped;
  for (const auto& sheet : data_sheets())
    for (const auto& [name, scalar] :
         load(std::string(std::getenv("PROFILES")) + "/" + sheet.profile + ".json", {}).scalars)
      shipped.insert(name);
  CHECK(shipped.size() > 200);
  for (std::size_t i = 0; const auto& name : shipped) {
    CAPTURE(name);
    CHECK(named(name) == "accepted");
    if (i++ % 8 != 0 || name.find(".fp8.") != name.npos) continue;  // the nearest of thousands takes its time
    CHECK(named(name + "x") ==
          "p.json:3: scalars." + name + "x: no such number is ever asked for; did you mean \"" + name + "\"?");
    CHECK(named(name.substr(0, name.size() - 1)).starts_with("p.json:3: scalars."));
  }
  for (const char* name : {"host.forward.gemm_us", "host.backward.gemm.grouped.bf16.nt_each_us",
                           "host.forward.fp8.all_gather_us", "memory.outside.nccl_peers_8_bytes",
                           "contention.gpus_8_two_way.copy_d2h", "contention.four_way.infiniband", "in_situ.duty"})
    CHECK(named(name) == "accepted");
  for (const char* name :
       {"host.upward.gemm_us", "host.forward.gem_us", "host.forward.gemm", "contention.four_way.copy_d2h",
        "contention.copy_d2h.copy_h2d", "memory.outside.nccl_peers_x_bytes", ""})
    CHECK(named(name) != "accepted");
}

TEST_CASE("a key that stands twice is refused where it stands again, wherever that is") {
  CHECK(error_of(with("\"clocks\"", "\n\"name\": \"y\", \"clocks\"")) == "p.json:4: name: stands twice");
  CHECK(error_of(with("\"count\": 3", "\"count\": 3,\n\"bytes\": 8")) ==
        "p.json:5: families.fill.samples[0].bytes: stands twice");
  CHECK(error_of(with("{\"host", "{\"host.cuda_launch_us\": {\"value\": 1, \"spread\": 0},\n\"host")) ==
        "p.json:4: scalars.host.cuda_launch_us: stands twice");
  // Any line of a written profile, put in once more behind itself, is refused in that line.
  const std::string good = to_json(fabricated());
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < good.size(); at = good.find('\n', at) + 1)
    lines.push_back(good.substr(at, good.find('\n', at) + 1 - at));
  std::vector<std::size_t> keyed;
  for (std::size_t i = 0; i < lines.size(); ++i)
    if (lines[i].find("\": ") != std::string::npos && lines[i].find_first_not_of(' ') == lines[i].find('"') &&
        lines[i].ends_with(",\n"))
      keyed.push_back(i);
  REQUIRE(keyed.size() > 5);
  const bool passed = rc::check("a doubled key", [&] {
    const auto which = *rc::gen::elementOf(keyed);
    std::string bad;
    for (std::size_t i = 0; i < lines.size(); ++i) bad += i == which ? lines[i] + lines[i] : lines[i];
    const std::string error = error_of(bad);
    RC_ASSERT(error.starts_with("p.json:" + std::to_string(which + 2) + ": "));
    RC_ASSERT(error.ends_with(": stands twice"));
  });
  CHECK(passed);
}

TEST_CASE("damaged files are refused or read, never worse") {
  Profile small = fabricated();
  small.samples["gemm.bf16.tn"].resize(5);
  const std::string good = to_json(small);
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good.substr(0, i % 3 == 0 ? random() % good.size() : good.size());
    for (unsigned flips = random() % 4; flips > 0 && !bad.empty(); --flips) {
      bad[random() % bad.size()] = static_cast<char>(random() % 256);
    }
    try {
      parse(bad, "p.json");
    } catch (const UsageError&) {
      ++refused;
    }
  }
  CHECK(refused > 1000);  // every cut file, and most of the others
}

TEST_CASE("what the GPU is: written, read back, from the data sheet in files that do not say it, else not known") {
  Profile p = fabricated();
  p.device = device("NVIDIA X500", 160, 1536, 121, Bytes(96 << 20));
  CHECK(p.device.fp8_layouts == std::vector{Layout::tn});
  p.device.torch_workspace = Bytes(7);
  CHECK(parse(to_json(p), "p.json").device == p.device);

  const std::string plain = R"("device": "d")";
  CHECK(parse(with(plain, R"("device": "NVIDIA H200")"), "old.json").device == data_sheet("h200-sxm").device);
  CHECK(!parse(with(plain, plain), "old.json").device.known());
  CHECK(to_json(parse(with(plain, plain), "old.json")).find("\"gpu\"") == std::string::npos);

  const auto gpu = [&](const std::string& more) {
    return with(plain,
                plain + R"(, "gpu": {"multiprocessors": 100, "threads_per_multiprocessor": 2048, )" + more + "}");
  };
  const std::string rest = R"("l2_bytes": 1000)";
  CHECK(error_of(gpu(R"("compute_capability": "8.0", )" + rest)) == "accepted");
  for (const char* wrong : {"9", "9.", ".0", "9.10", "nine.0", "-9.0", "900.0"})
    CHECK(error_of(gpu(R"("compute_capability": ")" + std::string(wrong) + "\", " + rest))
              .starts_with("p.json:1: gpu.compute_capability: must be a compute capability"));
  CHECK(error_of(gpu(rest)) == "p.json:1: gpu.compute_capability: is missing");
  CHECK(error_of(gpu(R"("compute_capability": "9.0", "fp8_layouts": ["nm"], )" + rest))
            .starts_with("p.json:1: gpu.fp8_layouts[0]: \"nm\" is no layout; allowed: tn, nn, nt; did you mean"));
  CHECK(error_of(gpu(R"("compute_capability": "9.0", "l2": 3, )" + rest)).starts_with("p.json:1: gpu.l2: unknown key"));
}

TEST_CASE("data sheets: every figure has a source, every name is its own, and the shipped profiles agree") {
  std::set<std::string> names;
  for (const auto& sheet : data_sheets()) {
    CAPTURE(sheet.profile);
    CHECK(names.insert(sheet.profile).second);
    CHECK(names.insert(sheet.device.name).second);
    CHECK(sheet.device.known());
    for (const Figure& figure : {sheet.memory_bytes, sheet.memory_gbytes_per_s, sheet.bf16_tflops, sheet.fp8_tflops,
                                 sheet.nvlink_gbytes_per_s, sheet.host_gbytes_per_s})
      CHECK(!figure.source.empty());
    CHECK(find_data_sheet(sheet.device.name) == &sheet);
    CHECK((sheet.fp8_tflops.value > 0) == !sheet.device.fp8_layouts.empty());
  }
  CHECK_THROWS_WITH_AS(data_sheet("h200-smx", {"--gpu", 0}), doctest::Contains("did you mean \"h200-sxm\"?"),
                       UsageError);
}

}  // namespace json_test
