// Merging, comparing, deriving and finding profiles.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "fabricate.hpp"

namespace combine_test {

using namespace pipewright;
using namespace pipewright::profile;

TEST_CASE("merge: the union, the first has precedence") {
  Profile a = fabricated(), b = fabricated();
  b.name = "second";
  b.samples["fill"].front().ns = 1;
  b.samples["fill"].push_back(sample({5000}, 99));
  b.samples["add"] = {sample({7}, 7)};
  b.scalars["host.event_us"] = {1, 0, Origin::measured, {}};
  b.links.push_back({"shared host memory", 9, 10, 0, Origin::measured, {}});
  const Profile m = merge({a, b});
  CHECK(m.name == "fabricated");
  CHECK(m.samples.at("fill").size() == a.samples.at("fill").size() + 1);
  CHECK(m.time({"fill", {4096}})->ns == stream_ns(4096));
  CHECK(m.time({"fill", {5000}})->ns == 99);
  CHECK(m.time({"add", {7}})->ns == 7);
  CHECK(m.link("shared host memory") != nullptr);
  CHECK(m.scalars.contains("host.event_us"));
  CHECK(m.provenance.size() == 3);
  CHECK(diff(merge({a, a}), a).empty());
}

TEST_CASE("diff names every number that differs") {
  Profile a = fabricated(), b = fabricated();
  CHECK(diff(a, b).empty());
  b.samples["fill"].front().ns *= 2;
  b.samples["memset"] = {sample({3}, 1)};
  b.scalars.erase("host.cuda_launch_us");
  const auto d = diff(a, b);
  REQUIRE(d.size() == 3);
  CHECK(d[0].what == "fill bytes=4096 (us)");
  CHECK(d[0].b == 2 * d[0].a);
  CHECK(d[1].what == "memset bytes=3 (us)");
  CHECK(d[1].only_in_b);
  CHECK(d[2].what == "scalar host.cuda_launch_us");
  CHECK(d[2].only_in_a);
}

TEST_CASE("an H100: computing keeps its time, streaming waits for the slower memory, nothing claims to be measured") {
  const Profile h200 = fabricated();
  const Profile h100 = derive(h200, data_sheet("h200-sxm"), data_sheet("h100-sxm"));
  CHECK(h100.name == "h100-sxm");
  CHECK(h100.origin == Origin::derived);
  CHECK(h100.memory.value > 84'000'000'000);
  CHECK(h100.memory.value < 86'000'000'000);
  const auto ratio = [&](const Key& key) { return h100.time(key)->ns / h200.time(key)->ns; };
  CHECK(ratio({"gemm.bf16.tn", {8192, 8192, 8192}}) == doctest::Approx(1).epsilon(0.01));
  CHECK(ratio({"fill", {std::int64_t{1} << 30}}) == doctest::Approx(4.8 / 3.35).epsilon(0.01));
  CHECK(ratio({"fill", {4096}}) == doctest::Approx(1).epsilon(0.001));  // its fixed cost hides its traffic
  CHECK(ratio({"send_recv.nvlink", {1 << 20}}) == 1);
  for (const auto& [name, samples] : h100.samples) {
    for (const auto& s : samples) CHECK(s.origin == Origin::derived);
  }
  CHECK(h100.time({"fill", {std::int64_t{1} << 30}})->note.starts_with("fabricated x 1.4"));
  CHECK(to_json(parse(to_json(h100), "h100")) == to_json(h100));
}

TEST_CASE("what was measured on the GPU itself stands in its derived profile, again and again the same") {
  const Profile derived = derive(fabricated(), data_sheet("h200-sxm"), data_sheet("h100-sxm"));
  Profile own = derived;
  own.origin = Origin::measured;
  own.samples.clear();
  own.samples["fill"] = {sample({4096}, 7777), sample({12288}, 8888)};
  own.samples["fill"].back().origin = Origin::derived;  // of somebody else's: not taken
  own.scalars = {{"clocks.window_ms", {33, 0.1, Origin::measured, "here"}}};
  own.provenance = {"pipewright capture --out mine.json"};
  const Profile p = with_measured(derived, {own});
  CHECK(p.origin == Origin::measured);
  CHECK(p.time({"fill", {4096}})->ns == 7777);
  CHECK(p.time({"fill", {4096}})->origin == Origin::measured);
  CHECK(p.samples.at("fill").size() == derived.samples.at("fill").size());
  CHECK(p.samples.at("gemm.bf16.tn").front().origin == Origin::derived);
  CHECK(p.scalars.at("clocks.window_ms").value == 33);
  CHECK(p.scalars.at("host.cuda_launch_us").origin == Origin::derived);
  CHECK(p.provenance.front() == "pipewright capture --out mine.json");
  CHECK(p.provenance.at(1).starts_with("derived from "));
  CHECK(to_json(with_measured(derived, {parse(to_json(p), "p")})) == to_json(p));
  own.device.name = "NVIDIA H200";
  CHECK_THROWS_WITH_AS(with_measured(derived, {own}), doctest::Contains("the data sheet is of"), UsageError);
}

TEST_CASE("profiles of different GPUs are never one: neither merged nor in a list; those that name none are") {
  Profile a = fabricated(), b = fabricated();
  a.name = "mine", a.device.name = "NVIDIA H200";
  b.name = "other", b.device.name = "NVIDIA B200";
  const char* const why = "mine is of NVIDIA H200, other of NVIDIA B200";
  CHECK_THROWS_WITH_AS(merge({a, b}), doctest::Contains(why), UsageError);
  CHECK_THROWS_WITH_AS(Profiles({a, b}), doctest::Contains(why), UsageError);
  Profile links = fabricated();
  links.device.name.clear();
  CHECK_THROWS_WITH_AS(Profiles({a, links, b}), doctest::Contains(why), UsageError);
  CHECK_NOTHROW(Profiles({links, a}));
  CHECK_NOTHROW(merge({a, a}));
}

TEST_CASE("what load adds is scaled to what published products of both parts tell, and is known so much worse") {
  const Profile h200 = load(std::string(std::getenv("PROFILES")) + "/h200-sxm.json", {"test", 0});
  DataSheet sheet = data_sheet("h100-sxm");
  sheet.under_load = DataSheet::UnderLoad{"h200-sxm", 0.945, 0.962, 0.016, "test"};
  const Profile h100 = derive(h200, sheet), gb200 = derive(h200, data_sheet("gb200-nvl72"));
  for (const auto& [precision, ratio] :
       {std::pair<std::string, double>("bf16", sheet.under_load->bf16), {"fp8", sheet.under_load->fp8}}) {
    CAPTURE(precision);
    const auto full = [&](const Profile& p) { return p.clocks_for(precision, "matrix")->rows.back().matrix; };
    CHECK(full(h100) == doctest::Approx(ratio * full(h200)));
    CHECK(full(gb200) == full(h200));  // its ratio is to another part
    const auto &layer = h100.clocks_for(precision)->rows, &measured = h200.clocks_for(precision)->rows;
    for (std::size_t i = 0; i < layer.size(); ++i)
      CHECK((layer[i].attention - 1) * (full(h200) - 1) ==
            doctest::Approx((measured[i].attention - 1) * (full(h100) - 1)));
  }
  CHECK(h100.scalars.at("clocks.law_spread").value > h200.scalars.at("clocks.law_spread").value);
  CHECK(sheet.under_load->share("bf16", 1.01) == 0);  // never faster than cool
}

TEST_CASE("profiles are found by name in $PIPEWRIGHT_PROFILES, or as a path") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("pipewright-profiles-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  write_file((folder / "mine-of-test.json").string(), to_json(fabricated()));
  ::setenv("PIPEWRIGHT_PROFILES", folder.c_str(), 1);
  CHECK(load("mine-of-test", {"s.yaml", 3}).name == "fabricated");
  CHECK(load((folder / "mine-of-test.json").string(), {"s.yaml", 3}).name == "fabricated");
  CHECK_THROWS_WITH_AS(load("mine-of-tset", {"s.yaml", 3}), doctest::Contains("did you mean \"mine-of-test\"?"),
                       UsageError);
  CHECK_THROWS_WITH_AS(load("mine-of-tset", {"s.yaml", 3}), doctest::Contains("s.yaml:3: profile: "), UsageError);
  CHECK_THROWS_AS(load("", {"s.yaml", 3}), UsageError);
  CHECK_THROWS_AS(load("/", {"s.yaml", 3}), UsageError);
  ::unsetenv("PIPEWRIGHT_PROFILES");
  CHECK_THROWS_AS(load("mine-of-test", {"s.yaml", 3}), UsageError);
  fs::remove_all(folder);
}

}  // namespace combine_test
