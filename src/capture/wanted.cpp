#include "wanted.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace pipewright::capture {
namespace {

constexpr std::string_view host_families[] = {"adam.host", "copy.d2h", "copy.h2d", "copy.h2d.pageable"};

bool among(const auto& names, const std::string& name) { return std::ranges::find(names, name) != std::end(names); }

bool is_family(const std::string& name) {
  return std::ranges::any_of(profile::families(), [&](const auto& family) { return family.name == name; });
}

}  // namespace

Wanted::Wanted(const std::string& ops, std::optional<profile::Profile> have)
    : ops_(ops), wanted_(ops), have_(std::move(have)) {}

Wanted::Wanted(const Options& options)
    : Wanted(options.ops, options.lacking.empty() ? std::nullopt
                                                  : std::optional(profile::load(options.lacking, {"--lacking", 0}))) {}

bool Wanted::operator()(const std::string& name) const {
  if (!ops_.empty() && !wanted_.found_in(name)) return false;
  if (!have_) return true;
  if (among(host_speeds, name)) return !ops_.empty();
  if (is_family(name)) return !among(host_families, name) || !have_->samples.contains(name);
  return !have_->scalars.contains(name);
}

bool Wanted::operator()(const profile::Key& key) const {
  if (!(*this)(key.family)) return false;
  if (!have_) return true;
  const auto known = have_->samples.find(key.family);
  return known == have_->samples.end() ||
         std::ranges::none_of(known->second, [&](const auto& sample) { return sample.dims == key.dims; });
}

}  // namespace pipewright::capture
