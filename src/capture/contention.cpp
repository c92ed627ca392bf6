// Slow-down of kernels of each kind beside something else.
#include "parts.hpp"

namespace pipewright::capture {

using profile::Key;

void measure_contention(Lab& lab, Attention& attention, Session& session, const std::function<void()>& begin,
                        const std::function<void()>& end, const std::string& beside) {
  const std::vector<std::pair<const char*, std::vector<Key>>> kinds = {
      {"matrix",
       {{"gemm.bf16.tn", {28672, 4096, 4096}},
        {"gemm.bf16.tn", {6144, 4096, 4096}},
        {"gemm.bf16.tn", {4096, 4096, 4096}},
        {"gemm.bf16.tn", {4096, 4096, 14336}},
        {"gemm.bf16.nn", {4096, 4096, 28672}},
        {"gemm.bf16.nt.acc_f32", {4096, 28672, 4096}}}},
      {"attention",
       {{"attention.forward.bf16", {1, 4096, 4096, 32, 8, 128}},
        {"attention.backward.bf16", {1, 4096, 4096, 32, 8, 128}}}},
      {"memory", {{"add", {16 << 20}}, {"swiglu.forward", {4096, 14336}}, {"rmsnorm.forward", {4096, 4096}}}}};
  for (const auto& [kind, keys] : kinds) {
    const std::string name = std::string("contention.") + kind;
    if (!session.wants(name)) continue;
    double alone = 0, together = 0;
    for (const Key& key : keys) {
      if (session.stop) return;
      lab.reset();
      const auto op = make_op(lab, attention, key);
      if (!op) continue;
      alone += measure(lab, *op, {}).ns.median;
      begin();
      together += measure(lab, *op, {}).ns.median;
      end();
    }
    if (alone > 0) {
      session.result.profile.scalars[name] = {together / alone, 0, profile::Origin::measured,
                                              "time while " + beside + ", over time alone"};
    }
  }
}

}  // namespace pipewright::capture
