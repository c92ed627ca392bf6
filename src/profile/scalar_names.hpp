// What the scalars of a profile may be called.
#pragma once

#include <string>
#include <string_view>

namespace pipewright::profile {

bool is_scalar(std::string_view name);
std::string nearest_scalar(std::string_view name);

}  // namespace pipewright::profile
