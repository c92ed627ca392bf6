// From a key to a time with its origin, its spread and the reason why it is not measured.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "interpolate.hpp"

namespace pipewright::profile {
namespace {

std::string shape(const Family& f, const std::vector<std::int64_t>& dims) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < dims.size(); ++i) parts.push_back(fmt::format("{}={}", f.dims.at(i), dims[i]));
  return fmt::format("{}", fmt::join(parts, " "));
}

double interpolation_error(const Profile& profile, const std::string& family_name) {
  const auto found = profile.interpolation.find(family_name);
  return found != profile.interpolation.end() && found->second.tests > 0 ? found->second.error : untested_error;
}

Timing timing(const Profile& profile, const Family& f, const Estimate& e, double error) {
  Timing t;
  t.ns = e.ns;
  t.profile = profile.name;
  double noise = 0;
  for (const Sample* s : e.from) {
    noise = std::max(noise, s->spread);
    t.origin = std::max(t.origin, s->origin);
  }
  t.spread = noise;
  if (e.match == Match::exact) {
    t.note = e.from.front()->source;
    return t;
  }
  const std::string nearest = shape(f, e.from.front()->dims);
  if (e.match == Match::inside) {
    t.origin = std::max(t.origin, Origin::interpolated);
    t.spread = std::hypot(noise, error);
    t.note = fmt::format("interpolated from {} shapes around it, among them {}", e.from.size(), nearest);
  } else {
    t.origin = Origin::derived;
    t.spread = std::hypot(noise, error * (1 + e.octaves_outside));
    t.note =
        fmt::format("extrapolated: {:.3g} octaves away from what was measured, from {}", e.octaves_outside, nearest);
  }
  return t;
}

}  // namespace

std::optional<Found> lookup(const Profile& profile, const Key& key) {
  const Family& f = family(key.family);
  if (key.dims.size() != f.dims.size()) {
    throw InternalError(fmt::format("{} has {} dimensions, not {}", key.family, f.dims.size(), key.dims.size()));
  }
  for (const auto d : key.dims) {
    if (d < 1) throw InternalError(fmt::format("{}: {} is no shape", key.family, shape(f, key.dims)));
  }
  const auto samples = profile.samples.find(key.family);
  if (samples != profile.samples.end()) {
    if (const auto e = estimate(f, samples->second, key.dims)) {
      return Found{timing(profile, f, *e, interpolation_error(profile, key.family)), e->match, e->octaves_outside};
    }
  }
  if (f.load == Load::network) return derive_network(profile, key);
  return std::nullopt;
}

std::optional<Timing> Profile::time(const Key& key) const {
  auto found = lookup(*this, key);
  if (!found) return std::nullopt;
  return std::move(found->timing);
}

void Profile::prepare() {
  for (const auto& [family_name, family_samples] : samples) {
    if (!interpolation.contains(family_name)) {
      interpolation[family_name] = leave_one_out(family_name, family_samples);
    }
  }
}

namespace {

const Link* find_link(const std::vector<Link>& links, const std::string& link_name) {
  const auto found = std::find_if(links.begin(), links.end(), [&](const Link& l) { return l.name == link_name; });
  return found == links.end() ? nullptr : &*found;
}

}  // namespace

const Link* Profile::link(const std::string& link_name) const {
  const Link* own = find_link(links, link_name);
  return own != nullptr ? own : find_link(published_links(), link_name);
}

const Clocks* Profile::clocks_for(const std::string& precision, const std::string& kernels) const {
  for (const auto& c : clocks) {
    if (c.precision == precision && c.kernels == kernels) return &c;
  }
  return nullptr;
}

double Clocks::slowdown(Load load, double duty) const {
  const auto column = [load](const ClockRow& row) {
    switch (load) {
      case Load::matrix:
        return row.matrix;
      case Load::attention:
        return row.attention;
      case Load::memory:
        return row.memory;
      case Load::network:
      case Load::none:
        return 1.0;
    }
    throw InternalError("load out of range");
  };
  if (rows.empty()) return 1;
  const auto above = std::find_if(rows.begin(), rows.end(), [duty](const ClockRow& r) { return r.duty >= duty; });
  if (above == rows.begin()) return column(rows.front());
  if (above == rows.end()) return column(rows.back());
  const auto& below = *(above - 1);
  const double share = (duty - below.duty) / (above->duty - below.duty);
  return (1 - share) * column(below) + share * column(*above);
}

double Clocks::busy_watts() const {
  // From a tenth below the limit on the clock falls, and with it the slope.
  constexpr double below_limit = 0.9;
  double n = 0, duty = 0, watts = 0, square = 0, product = 0;
  for (const auto& row : rows) {
    if (limit_watts > 0 && row.watts > below_limit * limit_watts) continue;
    n += 1, duty += row.duty, watts += row.watts, square += row.duty * row.duty, product += row.duty * row.watts;
  }
  const double spread = n * square - duty * duty;
  return spread > 0 ? (n * product - duty * watts) / spread : 0;
}

double ClockLaw::weight(Load load) const {
  switch (load) {
    case Load::matrix:
      return matrix;
    case Load::attention:
      return attention;
    case Load::memory:
      return memory;
    case Load::network:
    case Load::none:
      return 0;
  }
  throw InternalError("load out of range");
}

struct Profiles::Memo {
  std::shared_mutex mutex;
  std::map<Key, Timing> times;
};

Profiles::Profiles(std::vector<Profile> in_order) : profiles_(std::move(in_order)), memo_(std::make_shared<Memo>()) {}

Timing Profiles::time(const Key& key) const {
  {
    const std::shared_lock lock(memo_->mutex);
    if (const auto known = memo_->times.find(key); known != memo_->times.end()) return known->second;
  }
  auto timing = look_up(key);
  const std::unique_lock lock(memo_->mutex);
  return memo_->times.emplace(key, std::move(timing)).first->second;
}

Timing Profiles::look_up(const Key& key) const {
  std::optional<Found> best;
  for (const auto& profile : profiles_) {
    auto found = lookup(profile, key);
    // Of two extrapolations the nearer one: a run's own few shapes say little about far ones.
    if (found &&
        (!best || std::pair(found->match, found->octaves_outside) < std::pair(best->match, best->octaves_outside)))
      best = std::move(found);
    if (best && best->match == Match::exact) break;
  }
  if (best) return std::move(best->timing);
  const std::string asked = fmt::format("{} {}", key.family, shape(family(key.family), key.dims));
  throw UsageError(fmt::format("profile {}: no measurement of {}; `pipewright capture` takes it", first().name, asked));
}

Scalar Profiles::scalar(const std::string& scalar_name) const {
  std::vector<std::string> known;
  for (const auto& profile : profiles_) {
    const auto found = profile.scalars.find(scalar_name);
    if (found != profile.scalars.end()) return found->second;
    for (const auto& [each, ignored] : profile.scalars) known.push_back(each);
  }
  throw UsageError({first().name, 0}, "scalars." + scalar_name, "is not in the profile", known,
                   nearest_name(scalar_name, known));
}

const Link& Profiles::link(const std::string& link_name) const {
  std::vector<std::string> known;
  for (const auto& profile : profiles_) {
    if (const Link* own = find_link(profile.links, link_name)) return *own;
    for (const auto& each : profile.links) known.push_back(each.name);
  }
  if (const Link* published = find_link(published_links(), link_name)) return *published;
  for (const auto& each : published_links()) known.push_back(each.name);
  throw UsageError({first().name, 0}, "links", fmt::format("the profile has no link \"{}\"", link_name), known,
                   nearest_name(link_name, known));
}

const Clocks* Profiles::clocks_for(const std::string& precision, const std::string& kernels) const {
  for (const auto& profile : profiles_) {
    if (const Clocks* found = profile.clocks_for(precision, kernels)) return found;
  }
  return nullptr;
}

std::optional<ClockLaw> Profiles::clock_law(const std::string& precision) const {
  ClockLaw law;
  law.layer = clocks_for(precision);
  if (law.layer == nullptr) return std::nullopt;
  const double layer = law.layer->busy_watts();
  const auto weight = [&](const char* kernels) {
    const Clocks* alone = clocks_for(precision, kernels);
    if (alone == nullptr) alone = clocks_for("bf16", kernels);  // attention and memory-bound kernels do not change
    const double watts = alone != nullptr ? alone->busy_watts() : 0;
    return layer > 0 && watts > 0 ? watts / layer : 1;
  };
  law.matrix = weight("matrix");
  law.attention = weight("attention");
  law.memory = weight("memory");
  return law;
}

}  // namespace pipewright::profile
