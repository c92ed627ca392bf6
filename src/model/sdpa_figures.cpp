#include "sdpa_figures.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace pipewright::model {
namespace {

constexpr std::array<double, 5> sdpa_lengths = {2048, 4096, 8192, 16384, 32768};

struct SdpaRow {
  Int capability;
  bool latent, blocks, forward;
  std::array<double, 5> fp8_us, bf16_us;
};
constexpr SdpaRow sdpa_rows[] = {
    {90, false, false, true, {98, 322, 1141, 4357, 16884}, {142, 465, 1708, 6531, 25566}},
    {90, false, false, false, {437, 1459, 6392, 29422, 118729}, {464, 1450, 5083, 19002, 75688}},
    {100, false, false, true, {97, 305, 1074, 4084, 16012}, {125, 391, 1397, 5150, 21692}},
    {100, false, false, false, {414, 1167, 3781, 13476, 52155}, {389, 1198, 4127, 16554, 71756}},
    {100, false, true, true, {103, 326, 1156, 4400, 17201}, {125, 391, 1397, 5150, 21692}},
    {100, false, true, false, {461, 1305, 4272, 15315, 61716}, {389, 1198, 4127, 16554, 71756}},
    {100, true, false, true, {207, 656, 2294, 8845, 35942}, {321, 977, 3470, 13103, 50456}},
    {100, true, false, false, {681, 2112, 7296, 29050, 123181}, {1056, 3383, 11984, 50424, 212546}},
    {100, true, true, true, {224, 714, 2478, 9337, 37773}, {321, 977, 3470, 13103, 50456}},
    {100, true, true, false, {854, 2620, 9567, 36835, 149238}, {1056, 3383, 11984, 50424, 212546}},
    {103, false, false, true, {70, 217, 759, 2880, 11319}, {100, 323, 1185, 4593, 18014}},
    {103, false, false, false, {364, 985, 3087, 10805, 41328}, {356, 1101, 3832, 14593, 59024}},
    {103, false, true, true, {79, 242, 856, 3225, 12632}, {100, 323, 1185, 4593, 18014}},
    {103, false, true, false, {424, 1203, 3917, 14072, 55340}, {356, 1101, 3832, 14593, 59024}},
    {103, true, false, true, {150, 493, 1758, 6653, 26146}, {268, 864, 3013, 11178, 44189}},
    {103, true, false, false, {591, 1803, 6188, 23257, 95057}, {977, 3127, 11074, 43911, 177494}},
    {103, true, true, true, {166, 546, 1944, 7336, 29731}, {268, 864, 3013, 11178, 44189}},
    {103, true, true, false, {772, 2348, 8030, 31002, 122768}, {977, 3127, 11074, 43911, 177494}}};

struct DeterministicRow {
  Int capability;
  bool latent;
  std::array<double, 5> deterministic_us, usual_us;
};
// Hopper: both kernels one after the other on one H100, cuDNN 9.19, batch 1 (16384 tokens: 16 heads in 2 groups);
// latent at 2048 tokens the benchmark's H200 over profiles/h200-sxm.json, as calls that short hold more than their
// kernels. What the longest takes stands for more.
constexpr DeterministicRow deterministic_rows[] = {
    {90, false, {682, 1828, 6098, 5954, 5954}, {659, 1660, 5322, 4931, 4931}},
    {90, true, {1271, 4982, 17521, 17521, 17521}, {1161, 4182, 14594, 14594, 14594}},
    {100, false, {431, 1352, 4754, 19007, 82343}, {389, 1198, 4127, 16554, 71756}},
    {100, true, {1015, 3301, 13023, 50136, 210687}, {1056, 3383, 11984, 50424, 212546}},
    {103, false, {388, 1220, 4298, 16462, 68488}, {356, 1101, 3832, 14593, 59024}},
    {103, true, {935, 3017, 10887, 41569, 175497}, {977, 3127, 11074, 43911, 177494}}};

/// Of GPUs without a row of their own the nearest capability below.
template <class Rows, class Same>
const auto* row_of(Int capability, const Rows& rows, const Same& same) {
  const auto* found = static_cast<decltype(&*std::begin(rows))>(nullptr);
  for (const auto& row : rows)
    if (same(row) && row.capability <= capability && row.capability / 10 == capability / 10) found = &row;
  return found;
}
const SdpaRow* quantized_row(Int capability, bool latent, bool blocks, bool forward) {
  return row_of(capability, sdpa_rows, [&](const SdpaRow& row) {
    return row.latent == latent && row.blocks == blocks && row.forward == forward;
  });
}
const DeterministicRow* deterministic_row(Int capability, bool latent) {
  return row_of(capability, deterministic_rows, [&](const DeterministicRow& row) { return row.latent == latent; });
}

/// Between two lengths by doublings.
double share_at(Int length, const std::array<double, 5>& us, const std::array<double, 5>& of_us) {
  const double at = std::clamp(static_cast<double>(length), sdpa_lengths.front(), sdpa_lengths.back());
  const auto above = static_cast<std::size_t>(
      std::max<std::ptrdiff_t>(1, std::ranges::lower_bound(sdpa_lengths, at) - sdpa_lengths.begin()));
  const auto share = [&](std::size_t i) { return us[i] / of_us[i]; };
  const double part = std::log2(at / sdpa_lengths[above - 1]);
  return share(above - 1) + part * (share(above) - share(above - 1));
}

}  // namespace

bool times_fp8_attention(const profile::Device& gpu, bool latent, bool blocks) {
  return quantized_row(gpu.compute_capability, latent, blocks, true) != nullptr;
}

double fp8_attention_share(const Dimensions& d, bool forward) {
  const auto* row = quantized_row(d.gpu.compute_capability, d.mla, d.precision.recipe == Recipe::mxfp8, forward);
  if (row == nullptr) throw InternalError("attention in FP8 without figures");
  return share_at(d.s, row->fp8_us, row->bf16_us);
}

bool times_deterministic_attention(const profile::Device& gpu, bool latent) {
  return deterministic_row(gpu.compute_capability, latent) != nullptr;
}

double deterministic_attention_share(const Dimensions& d) {
  const auto* row = deterministic_row(d.gpu.compute_capability, d.mla);
  if (row == nullptr) throw InternalError("deterministic attention without figures");
  return share_at(d.s, row->deterministic_us, row->usual_us);
}

Int deterministic_workspace(const Dimensions& d) {
  const Int row_sums = 4 * d.tokens * d.heads;
  if (d.gpu.compute_capability >= 100) return 4 * d.tokens * d.q + row_sums;  // dQ in fp32, as the usual kernel
  constexpr Int block = 64;
  const Int padded = (d.s + block - 1) / block * block;
  return 2 * d.b * d.heads * padded * padded + row_sums;
}

}  // namespace pipewright::model
