// What --ops and --lacking leave to be measured.
#include "wanted.hpp"

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>

namespace wanted_test {

using namespace pipewright;
using capture::Wanted;
using profile::Key;

namespace {

const profile::Profile& shipped() {
  static const auto p = profile::load(std::string(SOURCE_ROOT) + "/profiles/h100-sxm.json", {"test", 0});
  return p;
}

/// Families that time what a machine's host does, not its GPU: kernels of no load apart.
bool of_host(const profile::Family& family) { return family.load == profile::Load::none && family.name != "small"; }

}  // namespace

TEST_CASE("without --lacking all is measured that --ops names") {
  const Wanted all("", std::nullopt), hosts("^host", std::nullopt);
  for (const auto& family : profile::families()) {
    CHECK(all(family.name));
    CHECK(all(Key{family.name, std::vector<std::int64_t>(family.dims.size(), 64)}));
    CHECK(!hosts(family.name));
  }
  CHECK(hosts("host.time_factor"));
}

TEST_CASE("nothing that a profile has is measured again, and a machine's hosts never beside another's") {
  const auto& have = shipped();
  const Wanted wanted("", have);
  for (const auto& [name, scalar] : have.scalars) CHECK_MESSAGE(!wanted(name), name);
  for (const auto& [name, samples] : have.samples)
    for (const auto& sample : samples) CHECK_MESSAGE(!wanted(Key{name, sample.dims}), name);
  // Its own speed belongs to no merged profile, whether that says one or not.
  for (const char* speed : {"host.time_factor", "host.slow_share", "host.slow_factor", "host.rank_spread"}) {
    CHECK(!wanted(speed));
    auto without = have;
    without.scalars.erase(speed);
    CHECK(!Wanted("", without)(speed));
    CHECK(Wanted("^host", without)(speed));  // asked for by name
  }
  CHECK(wanted("host.not_known_yet_us"));
  // Any other shape, of any family: a kernel's is wanted, a host's only where the profile has none at all.
  CHECK(rc::check([&] {
    const auto& family = *rc::gen::elementOf(profile::families());
    Key key{family.name, {}};
    for (std::size_t i = 0; i < family.dims.size(); ++i)
      key.dims.push_back(*rc::gen::inRange<std::int64_t>(1, 1 << 20));
    const auto known = have.samples.find(family.name);
    const bool has = known != have.samples.end(),
               exact = has && std::ranges::any_of(known->second, [&](const auto&s) { return s.dims == key.dims; });
    RC_ASSERT(wanted(key) == (of_host(family) ? !has : !exact));
    auto without = have;
    without.samples.erase(family.name);
    RC_ASSERT(Wanted("", without)(key));
  }));
}

}  // namespace wanted_test
