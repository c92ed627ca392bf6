// From a key to a time with its origin, its spread and the reason why it is not measured.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <shared_mutex>
#include <unordered_map>

#include "interpolate.hpp"

namespace pipewright::profile {
namespace {

std::string shape(const Family& f, const std::vector<std::int64_t>& dims) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < dims.size(); ++i) parts.push_back(fmt::format("{}={}", f.dims.at(i), dims[i]));
  return fmt::format("{}", fmt::join(parts, " "));
}

/// Other kernels for what a family does: norms of widths that Transformer Engine has not tuned, or that do more; losses
/// of its later versions. A profile may know the plain ones alone.
struct Variant {
  std::string_view of, suffix;
  double unknown;  ///< how far its time lies from the plain kernel's, relative, on an H200
};
constexpr Variant variants[] = {{"norm.", ".general", 1},              // 1.4 to 3.7 times as long (19 widths)
                                {"norm.", ".cudnn", 0.3},              // 0.7 to 1.05 times (8 widths)
                                {"norm.", ".amax", 0.3},               // 1.0 to 1.25 times (34 widths on an H100)
                                {"norm.", ".fp8", 0.5},                // 0.8 to 1.5 times
                                {"cross_entropy.te.", ".copy", 0.5},   // 0.5 to 3.0 times (69 shapes)
                                {"cross_entropy.te.", ".fp32", 2.5}};  // 1.2 to 5.0 times

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

/// A profile may know no product whose rows are no multiple of 16 bytes: it takes longer than the next that is.
std::optional<Found> as_if_aligned(const Profile& profile, const Family& f, Key key) {
  constexpr std::int64_t vector = 8;  // elements of 16 bits
  constexpr double unknown = 4;       // 2.4 to 6.6 times as long on an H200 (120 shapes)
  const auto dims = key.dims;
  for (const auto i : f.contiguous) key.dims[i] = (key.dims[i] + vector - 1) / vector * vector;
  if (key.dims == dims) return std::nullopt;
  auto aligned = lookup(profile, key);
  if (!aligned) return aligned;
  aligned->timing.origin = Origin::derived;
  aligned->timing.spread = std::hypot(aligned->timing.spread, unknown);
  aligned->timing.note =
      "as fast as " + shape(f, key.dims) + "; rows that are no multiple of 16 bytes were not measured";
  return aligned;
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
  if (samples != profile.samples.end()) return as_if_aligned(profile, f, key);
  for (const auto& [of, suffix, unknown] : variants) {
    if (!key.family.ends_with(suffix) || key.family.find(of) == std::string::npos) continue;
    const std::string plain_family = key.family.substr(0, key.family.size() - suffix.size());
    auto plain = lookup(profile, {plain_family, key.dims});
    if (!plain) return plain;
    plain->timing.origin = Origin::derived;
    plain->timing.spread = std::hypot(plain->timing.spread, unknown);
    plain->timing.note = "as fast as " + plain_family + "; the kernel itself was not measured";
    return plain;
  }
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

namespace {

// Above it the part is at its power limit, which it holds to within some percent; below, a lower clock is a single tick
// of the controller.
constexpr double at_limit = 0.9;
bool limited(const Clocks& clocks, const ClockRow& row) { return row.watts > at_limit * clocks.limit_watts; }

/// The layer's duty over that of other kernels at the same clock: the mean over their rows at the power limit.
std::optional<double> weight_of(const Clocks& layer, const Clocks* kernels) {
  double sum = 0, count = 0;
  if (kernels != nullptr) {
    for (const auto& row : kernels->rows) {
      if (!limited(*kernels, row)) continue;
      const auto duty = layer.duty_at(row.mhz);
      if (duty) sum += *duty / row.duty, count += 1;
    }
  }
  return count > 0 ? std::optional(sum / count) : std::nullopt;
}

}  // namespace

double Clocks::at(double ClockRow::*column, double duty) const {
  const auto above = std::find_if(rows.begin(), rows.end(), [duty](const ClockRow& r) { return r.duty >= duty; });
  if (above == rows.begin() || rows.size() == 1) return rows.front().*column;
  const auto& next = above == rows.end() ? rows.back() : *above;
  const auto& below = *(&next - 1);
  const double share = (duty - below.duty) / (next.duty - below.duty);
  return (1 - share) * below.*column + share * next.*column;
}

double Clocks::slowdown(Load load, double duty) const {
  double ClockRow::*column = nullptr;
  switch (load) {
    case Load::matrix:
      column = &ClockRow::matrix;
      break;
    case Load::attention:
      column = &ClockRow::attention;
      break;
    case Load::memory:
      column = &ClockRow::memory;
      break;
    case Load::network:
    case Load::ring:
    case Load::peers:
    case Load::none:
      break;
  }
  return rows.empty() || column == nullptr ? 1 : at(column, duty);
}

double Clocks::slower_clock(double duty) const {
  return rows.empty() ? 1 : rows.front().mhz / at(&ClockRow::mhz, duty);
}

void Clocks::scale_load(double factor) {
  for (auto& row : rows)
    for (double* slower : {&row.matrix, &row.attention, &row.memory}) *slower = 1 + (*slower - 1) * factor;
}

std::optional<double> Clocks::duty_at(double mhz) const {
  std::vector<const ClockRow*> falling;
  for (const auto& row : rows) {
    if (limited(*this, row) && (falling.empty() || row.mhz < falling.back()->mhz)) falling.push_back(&row);
  }
  if (falling.size() < 2 || mhz > falling.front()->mhz) return std::nullopt;
  std::size_t next = 1;
  while (next + 1 < falling.size() && falling[next]->mhz > mhz) ++next;
  const ClockRow &a = *falling[next - 1], &b = *falling[next];
  return a.duty + (a.mhz - mhz) / (a.mhz - b.mhz) * (b.duty - a.duty);
}

double Clocks::busy_watts() const {
  const ClockRow *first = nullptr, *last = nullptr;
  for (const auto& row : rows) {
    if (limited(*this, row)) continue;
    if (first == nullptr) first = &row;
    last = &row;
  }
  return first != last ? (last->watts - first->watts) / (last->duty - first->duty) : 0;
}

namespace {

double integral_of_largest(std::int64_t count) {
  // Integral of x n phi(x) Phi(x)^(n-1).
  constexpr double reach = 8, step = 0.01;
  const auto n = static_cast<double>(count);
  double largest = 0;
  for (double x = -reach; x <= reach; x += step) {
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    largest += x * n * density * std::pow(std::erfc(-x / std::numbers::sqrt2) / 2, n - 1) * step;
  }
  return largest;
}

}  // namespace

double expected_largest(std::int64_t count) {
  if (count < 2) return 0;
  // A search asks for the same few counts with every candidate.
  thread_local std::map<std::int64_t, double> known;
  const auto [place, is_new] = known.try_emplace(count);
  if (is_new) place->second = integral_of_largest(count);
  return place->second;
}

// The mean over draws of chips and moments, of the slowest group of a stage, is within a tenth of a spread of this.
double ClockLaw::lockstep(std::int64_t gpus, std::int64_t stage) const {
  return 1 + std::hypot(fluctuation * expected_largest(gpus), chips * expected_largest(std::max(gpus, stage)));
}

ClockLaw ClockLaw::among(std::int64_t gpus, std::int64_t stage) const {
  ClockLaw law = *this;
  law.together = lockstep(gpus, stage);
  return law;
}

double ClockLaw::slowdown(Load load, double weighted_duty) const {
  const double share = load == Load::ring ? ring : load == Load::peers ? peers : 0;
  const double more =
      share > 0 ? share * (layer->slower_clock(weighted_duty) - 1) : layer->slowdown(load, weighted_duty) - 1;
  return 1 + more * together;
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
    case Load::ring:
    case Load::peers:
      return exchange;
    case Load::none:
      return 0;
  }
  throw InternalError("load out of range");
}

std::size_t Key::Hash::operator()(const Key& key) const {
  constexpr std::size_t odd = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio: spreads small dimensions
  std::size_t hash = std::hash<std::string>()(key.family);
  for (const auto dim : key.dims) hash = (hash ^ static_cast<std::size_t>(dim)) * odd;
  return hash ^ hash >> 32U;
}

struct Profiles::Memo {
  std::shared_mutex mutex;
  std::unordered_map<Key, Timing, Key::Hash> times;
};

Profiles::Profiles(std::vector<Profile> in_order) : profiles_(std::move(in_order)), memo_(std::make_shared<Memo>()) {
  refuse_other_gpus(profiles_);
}

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

std::optional<double> Profiles::find_scalar(const std::string& scalar_name) const {
  for (const auto& profile : profiles_)
    if (const auto found = profile.scalars.find(scalar_name); found != profile.scalars.end())
      return found->second.value;
  return std::nullopt;
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

bool Profiles::knows_device() const {
  return std::ranges::any_of(profiles_, [](const Profile& p) { return p.device.known(); });
}

const Device& Profiles::device() const {
  const auto first_known = std::ranges::find_if(profiles_, [](const Profile& p) { return p.device.known(); });
  return first_known != profiles_.end() ? first_known->device : assumed_device();
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
  const auto measured = [&](const char* kernels) {
    const Clocks* own = clocks_for(precision, kernels);
    return own != nullptr ? own : clocks_for("bf16", kernels);  // attention and memory-bound kernels do not change
  };
  const Clocks *matrix = measured("matrix"), *attention = measured("attention"), *both = measured("matrix+memory");
  law.matrix = weight_of(*law.layer, matrix).value_or(1);
  law.attention = weight_of(*law.layer, attention).value_or(1);
  // Alone, memory-bound kernels never meet the limit: what they add shows beside matrix kernels.
  const auto mixed = weight_of(*law.layer, both);
  if (mixed && both->memory_share > 0)
    law.memory = std::max(0.0, (*mixed - both->matrix_share * law.matrix) / both->memory_share);
  const Clocks& layer = *law.layer;
  const double whole =
      layer.matrix_share * law.matrix + layer.attention_share * law.attention + layer.memory_share * law.memory;
  if (whole > 0) {  // the layer itself weighs 1
    law.matrix /= whole;
    law.attention /= whole;
    law.memory /= whole;
  }
  if (const double busy = layer.busy_watts(); busy > 0)
    law.exchange = find_scalar("clocks.exchange_watts").value_or(0) / busy;
  law.ring = find_scalar("clocks.ring").value_or(0);
  law.peers = find_scalar("clocks.peers").value_or(0);
  if (!layer.rows.empty()) {
    const ClockRow& full = layer.rows.back();
    const double slowest = layer.matrix_share * full.matrix + layer.attention_share * full.attention +
                           layer.memory_share * full.memory - 1;
    if (slowest > 0) {
      law.fluctuation = find_scalar("clocks.fluctuation").value_or(0) / slowest;
      law.chips = find_scalar("clocks.chips").value_or(0) / slowest;
    }
  }
  return law;
}

}  // namespace pipewright::profile
