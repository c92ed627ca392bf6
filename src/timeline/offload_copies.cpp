// Sources: fine_grained_activation_offload.py:1002-1056,1122-1129,1200 (core_r0.19.0); TE 2.19 pytorch/cpu_offload.py:
// one stream for both directions, its copies wait for each tensor's event; a reload waits for the compute stream.
#include "offload_copies.hpp"

#include <algorithm>

namespace pipewright::timeline {

OffloadCopies::OffloadCopies(const offload::Plan& plan, const model::Stages& stages, const Prices& prices,
                             std::int64_t gap_ns)
    : plan_(plan),
      stages_(stages),
      prices_(prices),
      gap_(gap_ns),
      out_(plan.units.size(), Weaver::none),
      in_(plan.units.size(), Weaver::none) {}

void OffloadCopies::enter(std::size_t position, Handle tail) {
  if (!plan_.whole_layer) return;
  position_ = position;
  if (present_.size() <= position) present_.resize(position + 1);
  present_[position] = {tail, {}};
}

void OffloadCopies::launched(std::uint32_t kernel, Handle node) {
  if (!plan_.whole_layer || present_.empty()) return;
  auto& kernels = present_[position_].kernels;
  if (kernels.size() <= kernel) kernels.resize(kernel + 1, Weaver::none);
  kernels[kernel] = node;
}

void OffloadCopies::hook(Streams& streams, std::uint32_t instruction) {
  if (plan_.empty()) return;
  using Kind = offload::Action::Kind;
  for (const auto& action : plan_.later.at(next_++)) {
    switch (action.kind) {
      case Kind::copy_out:
        copy_out(streams, action.unit, instruction);
        break;
      case Kind::wait_out:
        streams.wait(streams.current, out_[action.unit], instruction);
        break;
      case Kind::copy_in:
        copy_in(streams, action.unit, instruction);
        break;
      case Kind::wait_in:
        streams.wait(streams.current, in_[action.unit], instruction);
        break;
      case Kind::reload_now:
        reload_now(streams, action.unit, instruction);
        break;
      case Kind::keep:
      case Kind::release:
      case Kind::let_go:
      case Kind::pack:
      case Kind::unpack:
        break;
    }
  }
}

Handle OffloadCopies::copy(Streams& streams, Lane lane, std::uint32_t unit, std::uint32_t kernel,
                           std::uint32_t instruction, std::vector<Handle> after) {
  const auto piece = plan_.units[unit].piece;
  const Price& price = prices_.pieces[piece][kernel];
  streams.host_spends(nanoseconds(price.host_us));
  Label what = streams.label(lane, NodeKind::kernel, instruction);
  what.purpose = model::Purpose::offload;
  what.set_kernel(piece, kernel);
  const auto ns = whole_ns(price.time.ns) + gap_;
  return streams.launch_after(what, ns, profile::Load::none, after);
}

void OffloadCopies::copy_out(Streams& streams, std::uint32_t unit, std::uint32_t instruction) {
  for (const auto& move : plan_.group(stages_, unit).moves) {
    std::vector<Handle> after{streams.tail(streams.current)};
    if (plan_.whole_layer) {
      const Present& layer = present_[plan_.units[unit].position];
      after = {move.after == model::OffloadGroup::none ? layer.start : layer.kernels.at(move.after),
               streams.tail(Lane::h2d)};
    }
    out_[unit] = copy(streams, Lane::d2h, unit, move.out, instruction, std::move(after));
  }
}

void OffloadCopies::copy_in(Streams& streams, std::uint32_t unit, std::uint32_t instruction) {
  for (const auto& move : plan_.group(stages_, unit).moves) {
    in_[unit] = copy(streams, plan_.stash ? Lane::d2h : Lane::h2d, unit, move.in, instruction,
                     {streams.tail(streams.current), plan_.whole_layer ? streams.tail(Lane::d2h) : out_[unit]});
  }
}

void OffloadCopies::reload_now(Streams& streams, std::uint32_t unit, std::uint32_t instruction) {
  for (const auto& move : plan_.group(stages_, unit).moves)
    in_[unit] = copy(streams, streams.current, unit, move.in, instruction, {});
}

}  // namespace pipewright::timeline
