// Several profiles made one, and two compared.
#include <fmt/format.h>

#include <algorithm>

#include "pipewright/profile.hpp"

namespace pipewright::profile {
namespace {

std::string sample_name(const Family& f, const std::string& family_name, const Sample& s) {
  std::string text = family_name;
  for (std::size_t i = 0; i < f.dims.size(); ++i) text += fmt::format(" {}={}", f.dims[i], s.dims.at(i));
  return text;
}

/// Everything that is one number, by a name that a person can read.
std::map<std::string, double> numbers(const Profile& p) {
  std::map<std::string, double> all;
  for (const auto& [name, samples] : p.samples) {
    for (const auto& s : samples) all[sample_name(family(name), name, s) + " (us)"] = ns_to_us(s.ns);
  }
  for (const auto& l : p.links) {
    all[fmt::format("link {} latency_us", l.name)] = l.latency_us;
    all[fmt::format("link {} gbytes_per_s", l.name)] = l.gbytes_per_s;
    all[fmt::format("link {} eager_bytes", l.name)] = static_cast<double>(l.eager_bytes);
  }
  for (const auto& c : p.clocks) {
    for (const auto& r : c.rows) {
      const std::string row = fmt::format("clocks {} {} duty={:.4g}", c.precision, c.kernels, r.duty);
      all[row + " mhz"] = r.mhz;
      all[row + " watts"] = r.watts;
      all[row + " matrix"] = r.matrix;
      all[row + " attention"] = r.attention;
      all[row + " memory"] = r.memory;
    }
  }
  for (const auto& [name, s] : p.scalars) all["scalar " + name] = s.value;
  if (p.device.known()) {
    all["gpu multiprocessors"] = static_cast<double>(p.device.multiprocessors);
    all["gpu compute_capability"] = p.device.compute_capability / 10.0;
    all["gpu l2_bytes"] = static_cast<double>(p.device.l2.value);
  }
  all["memory_bytes"] = static_cast<double>(p.memory.value);
  return all;
}

}  // namespace

namespace {

/// Of a network alone (nccl-tests): links between hosts are no GPU's.
bool of_network(const Profile& p) {
  const auto network = [](const auto& samples) { return family(samples.first).load == Load::network; };
  return !(p.samples.empty() && p.links.empty()) && std::all_of(p.samples.begin(), p.samples.end(), network);
}

}  // namespace

void refuse_other_gpus(const std::vector<Profile>& profiles) {
  const Profile* first = nullptr;
  for (const auto& p : profiles) {
    if (p.device.name.empty() || of_network(p)) continue;  // no name: traces that do not say
    if (first == nullptr) first = &p;
    if (p.device.name == first->device.name) continue;
    throw UsageError({"--profile", 0}, "profile",
                     fmt::format("{} is of {}, {} of {}: profiles that are used together must be of one GPU "
                                 "(`pipewright profile derive` makes one GPU's of another's)",
                                 first->name, first->device.name, p.name, p.device.name));
  }
}

Profile merge(const std::vector<Profile>& in_order) {
  if (in_order.empty()) throw InternalError("merge of no profiles");
  refuse_other_gpus(in_order);
  Profile result = in_order.front();
  result.interpolation.clear();
  for (std::size_t i = 1; i < in_order.size(); ++i) {
    const Profile& other = in_order[i];
    result.origin = std::max(result.origin, other.origin);
    for (const auto& [name, samples] : other.samples) {
      auto& kept = result.samples[name];
      for (const auto& s : samples) {
        const bool known = std::any_of(kept.begin(), kept.end(), [&](const Sample& k) { return k.dims == s.dims; });
        if (!known) kept.push_back(s);
      }
      std::sort(kept.begin(), kept.end(), [](const Sample& a, const Sample& b) { return a.dims < b.dims; });
    }
    for (const auto& l : other.links) {
      const bool known =
          std::any_of(result.links.begin(), result.links.end(), [&](const Link& k) { return k.name == l.name; });
      if (!known) result.links.push_back(l);
    }
    for (const auto& c : other.clocks) {
      if (result.clocks_for(c.precision, c.kernels) == nullptr) result.clocks.push_back(c);
    }
    result.scalars.insert(other.scalars.begin(), other.scalars.end());
    result.versions.insert(other.versions.begin(), other.versions.end());
    if (!result.device.known() && other.device.known()) result.device = other.device;
    result.provenance.push_back(fmt::format("merged: {} ({})", other.name, other.device.name));
    result.provenance.insert(result.provenance.end(), other.provenance.begin(), other.provenance.end());
  }
  result.prepare();
  return result;
}

std::vector<Difference> diff(const Profile& a, const Profile& b) {
  const auto in_a = numbers(a), in_b = numbers(b);
  std::vector<Difference> result;
  for (const auto& [what, value] : in_a) {
    const auto other = in_b.find(what);
    if (other == in_b.end()) {
      result.push_back({what, value, 0, true, false});
    } else if (other->second != value) {
      result.push_back({what, value, other->second, false, false});
    }
  }
  for (const auto& [what, value] : in_b) {
    if (!in_a.contains(what)) result.push_back({what, 0, value, false, true});
  }
  std::sort(result.begin(), result.end(), [](const Difference& x, const Difference& y) { return x.what < y.what; });
  return result;
}

}  // namespace pipewright::profile
