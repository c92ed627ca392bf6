// A program of somebody else: the headers stand above (install_test.sh), it links with pkg-config's words only.
#include <cstdio>

int main(int, char** argv) {
  using namespace pipewright;
  const auto scenario = scenario::read(argv[1]);
  scenario::check(scenario);
  const auto prediction = predict::predict(scenario, predict::profiles_of(scenario));
  std::printf("%.6f\n", ns_to_ms(prediction.step_ns));
}
