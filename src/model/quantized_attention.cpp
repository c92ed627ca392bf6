#include "quantized_attention.hpp"

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

/// Of GPUs without a row of their own the nearest capability below.
const SdpaRow* row_of(Int capability, bool latent, bool blocks, bool forward) {
  const SdpaRow* found = nullptr;
  for (const SdpaRow& row : sdpa_rows)
    if (row.latent == latent && row.blocks == blocks && row.forward == forward && row.capability <= capability &&
        row.capability / 10 == capability / 10)
      found = &row;
  return found;
}

}  // namespace

bool times_fp8_attention(const profile::Device& gpu, bool latent, bool blocks) {
  return row_of(gpu.compute_capability, latent, blocks, true) != nullptr;
}

double fp8_attention_share(const Dimensions& d, bool forward) {
  const SdpaRow* row = row_of(d.gpu.compute_capability, d.mla, d.precision.recipe == Recipe::mxfp8, forward);
  if (row == nullptr) throw InternalError("attention in FP8 without figures");
  const double at = std::clamp(static_cast<double>(d.s), sdpa_lengths.front(), sdpa_lengths.back());
  const auto above = static_cast<std::size_t>(
      std::max<std::ptrdiff_t>(1, std::ranges::lower_bound(sdpa_lengths, at) - sdpa_lengths.begin()));
  const auto share = [&](std::size_t i) { return row->fp8_us[i] / row->bf16_us[i]; };
  const double part = std::log2(at / sdpa_lengths[above - 1]);
  return share(above - 1) + part * (share(above) - share(above - 1));
}

}  // namespace pipewright::model
