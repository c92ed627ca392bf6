// Mean power, see power.hpp.
#include "power.hpp"

#include <numeric>

namespace pipewright::capture {

PowerMeter::PowerMeter(const Nvml& nvml)
    : nvml_(nvml), start_(std::chrono::steady_clock::now()), joules_(nvml.joules()), thread_([this] {
        while (!done_ && !joules_) {
          if (const auto watts = nvml_.watts()) readings_.push_back(*watts);
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
      }) {}

PowerMeter::~PowerMeter() {
  done_ = true;
  if (thread_.joinable()) thread_.join();
}

double PowerMeter::watts() {
  if (const auto now = nvml_.joules(); now && joules_)
    return (*now - *joules_) / std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  done_ = true;
  thread_.join();
  if (readings_.empty()) return 0;
  return std::accumulate(readings_.begin(), readings_.end(), 0.0) / static_cast<double>(readings_.size());
}

}  // namespace pipewright::capture
