/* Two gradients, synchronized over all workers of a job with ACP-SGD, from C. Build and run:
 *
 *   cc -std=c99 examples/c/engine.c -o engine $(pkg-config --cflags --libs gradpress)
 *   gradpress launch -n 2 -- ./engine
 */
#include <gradpress/c_api.h>
#include <stdio.h>

enum { kRows = 256, kCols = 128 };

static float weight[kRows * kCols];
static float bias[kRows];

/* Prints the error of a call that failed and frees it. */
static int failed(gradpress_code code, gradpress_text* error) {
  if (code == GRADPRESS_OK) return 0;
  fprintf(stderr, "code %d: %s\n", (int)code, gradpress_text_data(error));
  gradpress_text_free(error);
  return 1;
}

/* One step; each gradient is handed over as soon as backward has completed it. */
static int run_step(gradpress_engine* engine, uint32_t rank, int step) {
  gradpress_text* error = NULL;
  gradpress_text* report = NULL;
  for (size_t i = 0; i < kRows * kCols; ++i) weight[i] = 1.0F + (float)rank;
  if (failed(gradpress_engine_ready(engine, 0, weight, kRows * kCols, GRADPRESS_FLOAT32, &error),
             error)) {
    return 1;
  }
  for (size_t i = 0; i < kRows; ++i) bias[i] = (float)rank;
  if (failed(gradpress_engine_ready(engine, 1, bias, kRows, GRADPRESS_FLOAT32, &error), error)) {
    return 1;
  }
  if (failed(gradpress_engine_wait(engine, &report, &error), error)) return 1;
  if (rank == 0) {
    printf("step %d: mean weight %.3f, mean bias %.3f, %s\n", step, weight[0], bias[0],
           gradpress_text_data(report));
  }
  gradpress_text_free(report);
  return 0;
}

int main(void) {
  const char* const tensors =
      "[{\"name\": \"weight\", \"shape\": [256, 128]}, {\"name\": \"bias\", \"shape\": [256]}]";
  gradpress_group* group = NULL;
  gradpress_engine* engine = NULL;
  gradpress_text* error = NULL;
  uint32_t rank = 0;
  int wrong = 0;

  if (failed(gradpress_group_connect("{\"backend\": \"gloo\"}", &group, &error), error)) return 1;
  rank = gradpress_group_rank(group);
  /* The engine takes the group over. */
  if (failed(gradpress_engine_make(group, tensors, "{\"codec\": \"acpsgd:4\"}", &engine, &error),
             error)) {
    return 1;
  }
  for (int step = 0; step < 5 && wrong == 0; ++step) wrong = run_step(engine, rank, step);
  gradpress_engine_free(engine);
  return wrong;
}
