// How GPUs of a kind stand together where they are sold as a rack.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pipewright::profile {

struct Rack {
  std::int64_t gpus_per_node = 0;  ///< of a tray: one operating system
  std::int64_t nvlink_domain = 0;  ///< GPUs of the rack, all joined by NVLink
};
/// Of the GPU of this profile; none for servers of eight. Source: data sheets (data_sheets.cpp).
std::optional<Rack> rack_of(const std::string& profile_name);

}  // namespace pipewright::profile
