// One stage: forward and backward of every microbatch in turn (schedules.py:696-864); with expert-parallel overlap
// F(i+1) runs together with B(i) (combined_1f1b.py:35-135). Only the last backward synchronises gradients.
#include "combined.hpp"
#include "host_order.hpp"
#include "rank.hpp"

namespace pipewright::schedule {
namespace {

void one_after_another(int microbatches, Host& host) {
  host.disable_grad_sync();
  for (int i = 0; i < microbatches; ++i) {
    if (i == microbatches - 1) host.enable_grad_sync();
    host.forward({i, 0});
    host.backward({i, 0});
  }
}

void overlapped(int microbatches, Host& host, CombinedCall call) {
  call.run(Op{0, 0}, {});
  host.disable_grad_sync();
  for (int i = 0; i + 1 < microbatches; ++i) call.run(Op{i + 1, 0}, Op{i, 0});
  host.enable_grad_sync();
  call.run({}, Op{microbatches - 1, 0});
}

}  // namespace

void no_pipelining(const Config& config, RankProgram& program) {
  const Place place;
  Host host(config, place, program);
  if (config.ep_overlap)
    overlapped(config.microbatches, host, CombinedCall(config, place, host));
  else
    one_after_another(config.microbatches, host);
}

}  // namespace pipewright::schedule
