// What measuring itself needs: random data, a gate that holds a stream until the host has filled its queue, a reading
// of the SM clock, an empty kernel.
#pragma once

#include "stream.hpp"

namespace pipewright::kernels {

enum class Format { bf16, f32, e4m3, e5m2 };

/// Normal data with mean 0: deviation 1 (bf16, f32), or a quarter of the format's useful range (FP8). Zeros or constant
/// data would run faster, because less power is drawn.
void fill_normal(Format format, void* out, std::int64_t elements, std::uint64_t seed, Stream stream);

/// Spins until *open != 0 (pinned host memory) or the time limit is over; records whether it timed out.
void gate(const volatile int* open, int* timed_out, std::int64_t limit_ns, Stream stream);

/// SM cycles and nanoseconds over about `ns` nanoseconds of spinning in one block: out[0] cycles, out[1] nanoseconds,
/// out[2] the GPU's time at its start.
void clock_probe(std::int64_t* out, std::int64_t ns, Stream stream);

void empty(Stream stream);

}  // namespace pipewright::kernels
