// The profiles that come with the program: readable, and the H100 derived from the H200 as it is now.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include "pipewright/profile.hpp"

using namespace pipewright;
using namespace pipewright::profile;

namespace {

Profile shipped(const std::string& name) {
  const std::string path = std::string(std::getenv("PROFILES")) + "/" + name + ".json";
  return parse(read_file(path), path);
}

}  // namespace

TEST_CASE("h100-sxm.json is what `pipewright profile derive h200-sxm` writes") {
  const auto differences =
      diff(parse(to_json(derive(shipped("h200-sxm"), data_sheet("h100-sxm"))), "derived"), shipped("h100-sxm"));
  CHECK_MESSAGE(differences.empty(), differences.size() << " entries differ, first " << differences.front().what);
}

TEST_CASE("every entry of the H100 says that it is derived") {
  const Profile p = shipped("h100-sxm");
  CHECK(p.origin == Origin::derived);
  for (const auto& [name, samples] : p.samples) {
    CHECK_MESSAGE(
        std::all_of(samples.begin(), samples.end(), [](const Sample& s) { return s.origin == Origin::derived; }), name);
  }
  CHECK(p.time({"gemm.bf16.tn", {28672, 4096, 8192}})->origin == Origin::derived);
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
