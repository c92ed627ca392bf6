// Adam on the host as torch's fused CPU kernel does it (ATen native/cpu/FusedAdamKernel.cpp), without PyTorch: fp32
// gradient in, parameter and two moments in and out, 28 bytes an element, split evenly among a process' threads. What
// an optimizer on the host costs (optimizer_cpu_offload) is bound by how fast so many cores read and write memory.
#pragma once

#include <cstddef>
#include <vector>

namespace pipewright::capture {

/// One update of `count` elements in place; `step` counts from 1.
void adam_on_host(const float* gradient, float* parameter, float* first, float* second, std::size_t count, int step);

/// ns of an update of `elements` by each of `processes` at once, each with so many threads: one figure a round, the
/// mean over the processes.
std::vector<double> measure_host_adam(int processes, int threads, std::size_t elements, int rounds);

}  // namespace pipewright::capture
