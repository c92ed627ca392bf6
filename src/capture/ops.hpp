// The kernels under test, by family. Each factory sets up one shape and returns how to launch it, or nullopt if the
// part's memory is too small or the library has no kernel for it.
#pragma once

#include <memory>
#include <optional>

#include "bench.hpp"
#include "pipewright/profile.hpp"

namespace pipewright::capture {

/// cuBLASLt as Transformer Engine calls it (gemm.*, gemm.grouped.*, moe.router.gemm.*).
std::optional<Op> gemm_op(Lab& lab, const profile::Key& key);

/// cuDNN's fused attention through its graph API (attention.*). Plans are kept for the last shapes only.
class Attention {
 public:
  explicit Attention(Lab& lab);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;
  std::optional<Op> op(const profile::Key& key);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Own kernels and copies: everything that is neither a GEMM nor attention nor a link.
std::optional<Op> memory_op(Lab& lab, const profile::Key& key);
/// The same for mixture-of-experts layers and MLA's RoPE.
std::optional<Op> moe_op(Lab& lab, const profile::Key& key);

/// Whichever of these knows the family.
inline std::optional<Op> make_op(Lab& lab, Attention& attention, const profile::Key& key) {
  const auto begins = [&](const char* prefix) { return key.family.rfind(prefix, 0) == 0; };
  if (begins("gemm.") || begins("moe.router.gemm.")) return gemm_op(lab, key);
  if (begins("attention.")) return attention.op(key);
  if (begins("moe.") || begins("rope.mla.")) return moe_op(lab, key);
  return memory_op(lab, key);
}

}  // namespace pipewright::capture
