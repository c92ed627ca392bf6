#include "rope.hpp"

#include <algorithm>

#include "packed_rows.hpp"

namespace pipewright::model {

void mrope_angles(PieceBuilder& w, const Dimensions& d) {
  constexpr Int positions = 3;
  const Int width = d.rotated_width(d.head_dim), all = d.tokens * d.cp, bytes = 4 * all * width;
  const auto step = [&](const char* name, profile::Key key) {
    w.launch(std::string("rotary angles ") + name, std::move(key));
    w.eager();
  };
  step("positions", {"small", {}});
  step("frequencies", {"small", {}});
  const auto half = w.allocate("rotary tables", positions * bytes / 2);
  step("product", {"fill", {positions * bytes / 2}});
  const auto both = w.allocate("rotary tables", positions * bytes);
  step("halves joined", {"copy.d2d", {positions * bytes}});
  const auto chosen = w.allocate("rotary tables", bytes);
  step("sections joined", {"copy.d2d", {bytes}});
  w.free({half, both});
  if (d.b > 1) step("in order", {"copy.d2d", {bytes}});
  if (d.cp > 1) step("of the rank", {"copy.d2d", {bytes / d.cp}});
  w.free(chosen);
}

void Rope::fused_kernel(const char* name, profile::Key key) {
  Kernel kernel;
  kernel.name = name_ + name;
  kernel.key = std::move(key);
  kernel.share = d_.rotation;
  launch_of_rows(w_, d_, kernel, [](Kernel& of_kind, const PackedRows& rows) { of_kind.empty = rows.empty_blocks; });
}

std::uint32_t Rope::forward(Int heads, Int width, bool grad) {
  const Int n = d_.tokens * heads * width;
  if (d_.fused_rope) {
    const auto out = w_.allocate(name_, 2 * n);
    fused_kernel(" rope", {"rope.forward", {d_.tokens, heads, width}});
    return out;
  }
  const auto out = by_sequence() ? w_.allocate(name_, 2 * n) : no_tensor;
  const auto angles = packed_angles(width);
  const auto rotated = rotate(heads, width, out);
  w_.free(angles);
  if (!grad) free_tables();
  return rotated;
}

/// A single sequence that fills its row has angles for all of it.
bool Rope::by_sequence() const {
  return d_.packed_rope == PackedRope::by_sequence &&
         std::ranges::any_of(d_.packed, [](const PackedRows& rows) { return rows.sequences > 1; });
}

/// Eager kernels, at once or one of every sequence in a row. Those of unlike sequences are timed as ones of their mean.
void Rope::eager(const char* name, profile::Key key, double share, int launches, Over over) {
  Kernel kernel;
  kernel.name = name_ + name;
  kernel.key = std::move(key);
  kernel.share = share;
  kernel.launches = launches;
  kernel.host_family = "small";
  if (over == Over::row) return w_.launch(std::move(kernel));
  launch_of_rows(w_, d_, kernel, [&](Kernel& of_kind, const PackedRows& rows) {
    if (over == Over::sequence && !of_kind.key.dims.empty())
      of_kind.key.dims[0] = std::max<Int>(1, of_kind.key.dims[0] / rows.sequences);
    of_kind.share *= static_cast<double>(rows.sequences);
    of_kind.launches *= static_cast<int>(rows.sequences);
    if (rows.sequences > 1) of_kind.host_family = "rotation";
  });
}

/// Before the rotation of packed sequences: the host reads where they end, for each of queries and keys, or indices are
/// made on the GPU. Returns the angles of every token where they are made, in fp32.
std::uint32_t Rope::packed_angles(Int width) {
  if (d_.packed.empty()) return no_tensor;
  const Int bytes = 4 * d_.s * d_.rotated_width(width);
  const bool splits = d_.cp > 1;
  if (d_.packed_rope == PackedRope::indexed) {
    constexpr int of_ring = 11;  // operations on positions of two halves
    constexpr Int indices = 7;   // 64-bit numbers of every token
    const int operations = 15 + (splits ? of_ring : 0);
    eager(" positions", {"small", {}}, operations, operations);
    const auto positions = w_.allocate("rotary tables", 8 * indices * d_.s);
    const auto angles = w_.allocate("rotary tables", bytes);
    eager(" angles", {"copy.d2d", {bytes}});
    w_.free(positions);
    return angles;
  }
  eager(" lengths to host", {"small", {}}, 3, 3);
  w_.synchronize(Stream::compute);
  const int compares = d_.packed_rope == PackedRope::gathered ? 1 : 0;
  eager(" row's end to host", {"small", {}}, 1 + compares, 1 + compares);
  w_.synchronize(Stream::compute);
  if (by_sequence()) {
    if (splits) eager(" angles", {"copy.d2d", {bytes}}, 1, 1, Over::sequence);
    return no_tensor;
  }
  const auto angles = w_.allocate("rotary tables", bytes);
  if (splits) eager(" angles of sequences", {"copy.d2d", {bytes}}, 1, 1, Over::sequence);
  eager(" angles", {"copy.d2d", {bytes}});
  return angles;
}

/// cos or sin of the angles in fp32, times a factor, in 16 bits: what the product with it saves.
std::uint32_t Rope::table(const char* name, Int width) {
  const Int angles = d_.mrope ? d_.tokens : d_.s;
  const auto wide = w_.allocate("rotary tables", 4 * angles * width),
             scaled = w_.allocate("rotary tables", 4 * angles * width);
  w_.free(wide);
  const auto out = w_.allocate("rotary tables", 2 * angles * width);
  eager(name, {"cast.f32_bf16", {angles * width}}, 1, 3, over());
  w_.free(scaled);
  return out;
}

/// _apply_rotary_pos_emb_bshd, into `out` where sequences are rotated one by one.
std::uint32_t Rope::rotate(Int heads, Int width, std::uint32_t out) {
  const Int turned = d_.rotated_width(width), cols = heads * turned;
  const Int n = d_.tokens * cols;
  const Int temporary = 2 * longest() * cols;  // of the longest sequence
  const auto buffer = [&](Int bytes) { return w_.allocate(name_ + "_rotation", bytes); };
  const auto together = d_.mla ? buffer(temporary) : no_tensor;  // interleaved halves
  if (d_.mla) eager(" halves", {"copy.strided", {d_.tokens, cols}}, halves_joined, 1, over());
  cosines_ = table(" cos", turned);
  sines_ = table(" sin", turned);
  const auto cosine = buffer(temporary);
  eager(" x cos", {"copy.strided", {d_.tokens, cols}}, product, 1, over());
  const auto negative = buffer(temporary / 2), half = buffer(temporary);
  eager(" negative half", {"copy.strided", {d_.tokens, cols / 2}}, 1, 1, over());
  eager(" rotate half", {"copy.strided", {d_.tokens, cols}}, halves_joined, d_.rotary_interleaved ? 2 : 1, over());
  w_.free(negative);
  const auto sine = buffer(temporary);
  eager(" x sin", {"copy.strided", {d_.tokens, cols}}, product, 1, over());
  w_.free(half);
  const auto sum = buffer(temporary);
  eager(" rotation", {"add", {n}}, 1, 1, over());
  w_.free({cosine, sine, together});
  const Int whole = 2 * d_.tokens * heads * width;
  const auto joined = w_.allocate(name_, out == no_tensor ? whole : 2 * longest() * heads * width);
  if (turned == width)
    eager(" with what does not rotate", {"copy.d2d", {whole}}, 1, 1, over());
  else
    eager(" with what does not rotate", {"copy.strided", {d_.tokens, heads * width}}, halves_joined, 1, over());
  w_.free(sum);
  if (out == no_tensor) return joined;
  eager(" into the row", {"copy.d2d", {whole}}, 1, 1, over());
  w_.free(joined);
  return out;
}

void Rope::free_tables() { w_.release(cosines_, sines_); }

/// Of a product's, a sum's or a slice's autograd nodes; zeros where a slice has left elements out, and their sum.
std::uint32_t Rope::backward(Int heads, Int width, std::uint32_t gradient) {
  const Int whole = 2 * d_.tokens * heads * width;
  const auto buffer = [&](Int bytes) { return w_.allocate(name_ + "_gradient", bytes); };
  if (d_.fused_rope) {
    const auto out = buffer(whole);
    fused_kernel(" rope backward", {"rope.backward", {d_.tokens, heads, width}});
    w_.free(gradient);
    return out;
  }
  // CopySlices: for every sequence a copy of the whole row's gradient, of which its slice is then zero.
  auto of_sequences = no_tensor;
  if (by_sequence()) {
    const auto first = buffer(whole);
    w_.free(gradient);
    of_sequences = buffer(whole);
    gradient = buffer(whole);
    eager(" copies of the row's gradient", {"copy.d2d", {whole}}, 1, 1, Over::row_of_every_sequence);
    eager(" its gradient", {"copy.d2d", {whole}}, 1, 1, over());
    eager(" zeros", {"fill", {whole}}, 1, 1, over());
    eager(" zeros into the row", {"copy.d2d", {whole}}, 1, 1, over());
    w_.free(first);
  }
  const auto turned = rotate_backward(heads, width, gradient);
  if (of_sequences == no_tensor) return turned;
  w_.free(turned);
  const auto out = buffer(whole);
  eager(" gradients of sequences", {"copy.d2d", {whole}});
  w_.free(of_sequences);
  return out;
}

std::uint32_t Rope::rotate_backward(Int heads, Int width, std::uint32_t gradient) {
  const Int turned = d_.rotated_width(width), cols = heads * turned, n = d_.tokens * cols;
  const Int all = d_.tokens * heads * width;
  const Int temporary = 2 * longest() * cols;
  const auto buffer = [&](Int bytes) { return w_.allocate(name_ + "_gradient", bytes); };
  const auto zeros = [&](Int elements, Int bytes) {
    eager(" zeros", {"fill", {2 * elements}}, 1, 1, over());
    return buffer(bytes);
  };
  const auto sine = buffer(temporary);
  eager(" x sin backward", {"copy.strided", {d_.tokens, cols}}, product, 1, over());
  w_.release(sines_);
  const auto negative = buffer(temporary / 2);
  eager(" negative half backward", {"copy.strided", {d_.tokens, cols / 2}}, 1, 1, over());
  auto rotated = no_tensor;
  if (d_.rotary_interleaved) {  // each of the two into zeros
    rotated = zeros(n, temporary);
    const auto other = zeros(n, temporary);
    eager(" rotate half backward", {"copy.strided", {d_.tokens, cols}}, halves_joined, 2, over());
    eager(" rotate half backward sum", {"add", {n}}, 1, 1, over());
    w_.free(other);
  } else {
    rotated = buffer(temporary);
    eager(" rotate half backward", {"copy.strided", {d_.tokens, cols}}, halves_joined, 1, over());
  }
  w_.free({sine, negative});
  const auto cosine = buffer(temporary);
  eager(" x cos backward", {"copy.strided", {d_.tokens, cols}}, product, 1, over());
  w_.release(cosines_);
  eager(" gradient accumulation", {"add", {n}}, 1, 1, over());
  w_.free(cosine);
  const bool parts = d_.mla || turned < width;  // two slices: of the halves that MLA interleaves, or what is rotated
  auto out = rotated;
  if (parts) {
    out = zeros(all, 2 * longest() * heads * width);
    eager(" slices backward", {"copy.strided", {d_.tokens, heads * width}}, d_.mla ? halves_joined : 1, 2, over());
    w_.free(rotated);
    const auto other = zeros(all, 2 * longest() * heads * width);
    eager(" sum of slices", {"add", {all}}, 1, 1, over());
    w_.free(other);
  }
  if (turned == width) {  // nothing is not rotated
    w_.free(zeros(all, 2 * longest() * heads * width));
    eager(" sum with zeros", {"add", {all}}, 1, 1, over());
  }
  w_.free(gradient);
  return out;
}

}  // namespace pipewright::model
