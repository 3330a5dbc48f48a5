/* gradpress for C, and for every language that can call C.
 *
 *   gradpress_group* group = NULL;
 *   gradpress_engine* engine = NULL;
 *   gradpress_text* error = NULL;
 *   gradpress_group_connect("{\"backend\": \"gloo\"}", &group, &error);
 *   gradpress_engine_make(group, "[{\"name\": \"w\", \"shape\": [64, 64]}]",
 *                         "{\"codec\": \"acpsgd:4\"}", &engine, &error);
 *   for each step:
 *     gradpress_engine_ready(engine, 0, gradient, 4096, GRADPRESS_FLOAT32, &error);
 *     gradpress_engine_wait(engine, NULL, &error);   // now it is the mean over all workers
 *   gradpress_engine_free(engine);
 *
 * Results  A call that can fail returns a gradpress_code. If `error` is not NULL, the call stores a
 *          text there on failure and NULL on success. The caller frees it by gradpress_text_free.
 * Output   On failure, output handles are NULL and other outputs are unchanged.
 * Options  Options and reports are JSON objects in UTF-8. A call refuses an unknown option by its
 *          name. A report may gain fields: ignore those you do not know.
 * Handles  Opaque. Each kind has one function that frees it, which accepts NULL.
 * Forks    A handle belongs to the process that made it. In a forked child, freeing it does nothing
 *          and every other call fails with GRADPRESS_INVALID_ARGUMENT.
 * Threads  Each handle says which threads may call it. Different handles are independent. No thread
 *          of gradpress calls into the caller's code.
 *
 * Nothing here throws, prints or exits.
 */
#ifndef GRADPRESS_C_API_H
#define GRADPRESS_C_API_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define GRADPRESS_C_API __attribute__((visibility("default")))
#else
#define GRADPRESS_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. It grows when a function, an option or a field is added. A program
 * compiled with version n runs with every library whose gradpress_api_version() is n or more. */
#define GRADPRESS_C_API_VERSION 1

GRADPRESS_C_API uint32_t gradpress_api_version(void);
/* "0.1.0"; static memory. */
GRADPRESS_C_API const char* gradpress_version(void);

/* Sorted by what the caller does next. More may come: treat an unknown one as INTERNAL. */
typedef int32_t gradpress_code;
enum {
  GRADPRESS_OK = 0,
  GRADPRESS_INVALID_ARGUMENT = 1, /* the call or its input is wrong: fix it */
  GRADPRESS_NON_FINITE = 2,       /* a gradient holds NaN or infinity: skip the step */
  GRADPRESS_CORRUPT_PAYLOAD = 3,  /* bytes do not decode */
  GRADPRESS_PEER_LOST = 4,        /* a rank is gone: form a new group, go on from a checkpoint */
  GRADPRESS_INTERNAL = 5,         /* a bug of gradpress: report it */
  GRADPRESS_TIMED_OUT = 6         /* nothing happened within the time given: ask again */
};

/* Element types of buffers. */
typedef int32_t gradpress_type;
enum {
  GRADPRESS_BYTES = 0,
  GRADPRESS_FLOAT32 = 1,
  GRADPRESS_FLOAT16 = 2,
  GRADPRESS_BFLOAT16 = 3,
  GRADPRESS_FLOAT64 = 4 /* gradients of engines only */
};

/* ---- Text ------------------------------------------------------------------------------------ */

/* Bytes that a call returned: an error, a report, a checkpoint. Threads: any. */
typedef struct gradpress_text gradpress_text;
/* Zero-terminated; lives as long as the text. NULL for NULL. */
GRADPRESS_C_API const char* gradpress_text_data(const gradpress_text* text);
/* Bytes without the final zero; 0 for NULL. */
GRADPRESS_C_API size_t gradpress_text_size(const gradpress_text* text);
GRADPRESS_C_API void gradpress_text_free(gradpress_text* text);

/* ---- Groups ---------------------------------------------------------------------------------- */

/* One worker's end of a group of workers.
 * Threads: one starts calls and makes sub-groups; any may wait or ask. */
typedef struct gradpress_group gradpress_group;

/* Connects this process with the other ranks of its job and returns when all have come.
 * Options, all optional; what is not given comes from the launcher's environment as in
 * gradpress/world.h:
 *   backend "gloo" | "mpi" | "auto"   rank, size, local_rank, local_size   numbers
 *   master_address, master_port       store "host:port"
 *   store_listener   one rank only: the descriptor of a TCP socket that listens already. The call
 *                    takes it over, on failure as well, and hosts the store there. The other ranks
 *                    get its "host:port" as `store`, and that rank as `store_host_rank`. So may
 *                    this rank: by `store` it also finds the address that others reach it at.
 *   store_host_rank  the rank whose process hosts `store`; absent: a launcher hosts it
 *   name, restart, interface          as gradpress::WorldOptions
 *   timeout_s        how long a peer may deliver nothing in a collective before it counts as lost
 *   start_timeout_s  how long to wait for the others to come */
GRADPRESS_C_API gradpress_code gradpress_group_connect(const char* options, gradpress_group** group,
                                                       gradpress_text** error);
/* A world whose workers are threads of this process: fills groups[0 … count-1], one per worker.
 * Options: workers_per_machine, link "100mbit,50us", timeout_s. */
GRADPRESS_C_API gradpress_code gradpress_group_local(const char* options, gradpress_group** groups,
                                                     size_t count, gradpress_text** error);
/* A group of some ranks of this one, in that order. Every member calls it with the same list. */
GRADPRESS_C_API gradpress_code gradpress_group_subgroup(gradpress_group* group,
                                                        const uint32_t* ranks, size_t count,
                                                        gradpress_group** subgroup,
                                                        gradpress_text** error);
/* Abandons the calls that are not done; peers that need this worker get GRADPRESS_PEER_LOST. */
GRADPRESS_C_API void gradpress_group_free(gradpress_group* group);

GRADPRESS_C_API uint32_t gradpress_group_rank(const gradpress_group* group);
GRADPRESS_C_API uint32_t gradpress_group_size(const gradpress_group* group);
/* "gloo", "mpi" or "local"; static memory. */
GRADPRESS_C_API const char* gradpress_group_backend(const gradpress_group* group);
/* Payload bytes this worker sent, inside its machine and to other machines; either may be NULL. */
GRADPRESS_C_API void gradpress_group_sent_bytes(const gradpress_group* group, uint64_t* intra,
                                                uint64_t* inter);

typedef int32_t gradpress_collective;
enum {
  GRADPRESS_ALL_REDUCE = 0,
  GRADPRESS_REDUCE_SCATTER = 1,
  GRADPRESS_ALL_GATHER = 2,
  GRADPRESS_ALL_TO_ALL = 3,
  GRADPRESS_GATHER = 4,
  GRADPRESS_REDUCE = 5,
  GRADPRESS_BROADCAST = 6,
  GRADPRESS_BARRIER = 7
};

/* One collective call, as gradpress::Collective in gradpress/group.h. Set struct_size to
 * sizeof(gradpress_call) and all fields you do not use to zero: later versions append fields. */
typedef struct gradpress_call {
  size_t struct_size;
  gradpress_collective kind;
  gradpress_type type;
  const void* in;
  size_t in_bytes;
  void* out;
  size_t out_bytes;
  const size_t* counts; /* per rank, in elements; NULL: equal */
  size_t count_of_counts;
  const size_t* receive_counts; /* all-to-all only; NULL: equal */
  size_t count_of_receive_counts;
  uint32_t root;
  const char* tensor;  /* names the call in errors; NULL: none */
  uint32_t timeout_ms; /* 0: the group's own */
} gradpress_call;

/* Starts a collective and returns at once. Calls of a group run in the order of their start, which
 * is the same on every rank. Memory must live until gradpress_group_wait returned; after a failure,
 * until the group is freed. */
GRADPRESS_C_API gradpress_code gradpress_group_start(gradpress_group* group,
                                                     const gradpress_call* call, uint64_t* ticket,
                                                     gradpress_text** error);
GRADPRESS_C_API gradpress_code gradpress_group_wait(gradpress_group* group, uint64_t ticket,
                                                    gradpress_text** error);
/* 1 if gradpress_group_wait would return at once, else 0. */
GRADPRESS_C_API int32_t gradpress_group_done(const gradpress_group* group, uint64_t ticket);

/* ---- Engine ---------------------------------------------------------------------------------- */

/* Synchronizes the gradients of one model on a thread of its own, while backward runs.
 * Threads: one hands gradients over; one (possibly another) calls gradpress_engine_next; any may
 *          make the other calls, which wait for their turn between two steps. */
typedef struct gradpress_engine gradpress_engine;

/* Takes the group over, on failure as well. Every rank calls it with the same tensors and options;
 * ranks whose options differ are told in which.
 * tensors: [{"name": "fc.weight", "shape": [10, 84]}, …] in the order of backward. A shape of more
 * than 8 extents counts as flat.
 * Options, all optional, meaning and defaults as gradpress::EngineOptions in gradpress/engine.h:
 *   codec "none" | "acpsgd:4" | "auto" | …     rules [["*.bias", "none"], …]
 *   plan     a plan as JSON (gradpress-plan-1) instead of codec and rules
 *   momentum {"momentum": 0.9, "nesterov": false, "masking": true, "clip_norm": 0}
 *   auto     {"codecs": […], "raw_steps": 4, "window": 28, "min_gain": 0.03, "settle_steps": 6,
 *             "drift_interval": 100, "drift_factor": 1.3, "cache": ""}
 *   feedback, pipelining, fusion, sum_payloads, strict, allow_unused      true or false
 *   least_elements, bucket_bytes, raw_bucket_bytes, seed                  numbers
 *   return_unused  true: ranks agree, at the end of every step, which tensors no rank used
 *                  (gradpress_engine_unused). What was delivered to those goes back into the
 *                  residuals, and zeros stand in their memory. For callers that drop the gradients
 *                  of such tensors. Costs one small all-gather per step. Not with momentum. */
GRADPRESS_C_API gradpress_code gradpress_engine_make(gradpress_group* group, const char* tensors,
                                                     const char* options, gradpress_engine** engine,
                                                     gradpress_text** error);
/* Ends the thread and the connections. Steps whose last bucket was handed over are finished first;
 * one that is under way fails on the other ranks. After it returned, no memory that was handed over
 * is touched; whoever waited in another call of this engine has returned. */
GRADPRESS_C_API void gradpress_engine_free(gradpress_engine* engine);

/* Describes a bucket once: `tensors[i]` begins `offsets[i]` elements after the bucket's memory, and
 * its elements lie one after the other. The number it stores is for gradpress_engine_push; a layout
 * lives as long as the engine. */
GRADPRESS_C_API gradpress_code gradpress_engine_layout(gradpress_engine* engine,
                                                       const uint32_t* tensors,
                                                       const uint64_t* offsets, size_t count,
                                                       uint32_t* layout, gradpress_text** error);
/* Hands a bucket over and returns at once. The memory belongs to the engine until the step's
 * report; it then holds the mean over all workers. After a failure it belongs to the engine until
 * gradpress_engine_close or _free returned. Types other than GRADPRESS_FLOAT32 are converted on the
 * way in and out. `last` not 0: this bucket ends the step.
 * Cost:   a lock and a wake-up; no allocation after the first steps.
 * Errors: GRADPRESS_INVALID_ARGUMENT, and nothing was handed over: an unknown layout, memory that
 *         is NULL or not aligned to its elements, a tensor that came before in this step, with
 *         `last` a tensor that neither came nor is unused (unless allow_unused is set); the failure
 *         of an earlier step. */
GRADPRESS_C_API gradpress_code gradpress_engine_push(gradpress_engine* engine, uint32_t layout,
                                                     void* memory, gradpress_type type,
                                                     int32_t last, gradpress_text** error);
/* The same for one tensor; never the last of its step. */
GRADPRESS_C_API gradpress_code gradpress_engine_ready(gradpress_engine* engine, uint32_t tensor,
                                                      void* memory, uint64_t elements,
                                                      gradpress_type type, gradpress_text** error);
/* In the step under way these tensors have no gradient on this rank: their memory holds zeros, or
 * they are not handed over at all. Call it before the step's last bucket. */
GRADPRESS_C_API gradpress_code gradpress_engine_unused(gradpress_engine* engine,
                                                       const uint32_t* tensors, size_t count,
                                                       gradpress_text** error);
/* Ends the step under way, or an empty one, without a further bucket, and returns at once. */
GRADPRESS_C_API gradpress_code gradpress_engine_end_step(gradpress_engine* engine,
                                                         gradpress_text** error);
/* Ends the step, if its last bucket has not, and waits for it. The report is the step's event, see
 * below; `report` may be NULL. Log lines stay for gradpress_engine_next. For callers that do not
 * wait in gradpress_engine_next: a step is reported by one of the two only. */
GRADPRESS_C_API gradpress_code gradpress_engine_wait(gradpress_engine* engine,
                                                     gradpress_text** report,
                                                     gradpress_text** error);
/* Waits for the next event, at most `timeout_ms` (negative: without limit), and stores it as JSON:
 *   {"event": "step", "step": 12, "finite": true, "sent_bytes": 31744, "promised_bytes": 31744,
 *    "exposed_us": 801.5, "unused": 0, "suspended": false, "baseline_steps": 0,
 *    "running": "acpsgd:4"}
 *   {"event": "failed", "code": 4, "message": "…"}   the step under way, and all later ones
 *   {"event": "log", "line": "…"}                    for the user
 *   {"event": "closed"}                              gradpress_engine_close was called
 * A step's log lines come before the step. `finite` false, on every rank: a gradient somewhere held
 * NaN, infinity or a value beyond the limit; the engine is as it was before the step, bit for bit,
 * and the step's number comes again. Skip the update. `unused`: with return_unused the tensors that
 * no rank used, else those without a gradient on this rank. `suspended`: codec "auto" has settled
 * on no compression and holds no residual; the caller may switch to its own all-reduce.
 * `baseline_steps`: codec "auto" asks for so many steps by the caller's own path now, and for their
 * median by gradpress_engine_set_baseline; a caller may ignore it. Errors: GRADPRESS_TIMED_OUT. */
GRADPRESS_C_API gradpress_code gradpress_engine_next(gradpress_engine* engine, int64_t timeout_ms,
                                                     gradpress_text** event,
                                                     gradpress_text** error);
/* As gradpress_engine_free, but keeps the handle: after the events before it, every
 * gradpress_engine_next gets "closed"; other calls fail. For callers whose event thread must end
 * before they free. */
GRADPRESS_C_API void gradpress_engine_close(gradpress_engine* engine);

/* The calls below run between two steps: each waits until the steps handed over before it ended.
 * Inside a step (some buckets handed over, not the last) they fail. */

/* Residuals carry over. A codec that is refused changes nothing. */
GRADPRESS_C_API gradpress_code gradpress_engine_set_codec(gradpress_engine* engine,
                                                          const char* codec,
                                                          gradpress_text** error);
/* Step time in µs of the caller's own uncompressed path (for example DDP's all-reduce), or 0 if
 * unknown. "auto" keeps a plan only if it beats this. The slowest rank's counts. Any time. */
GRADPRESS_C_API gradpress_code gradpress_engine_set_baseline(gradpress_engine* engine, double us,
                                                             gradpress_text** error);
/* Multiplies all residuals, for example when the loss scale changes. */
GRADPRESS_C_API gradpress_code gradpress_engine_scale_residuals(gradpress_engine* engine,
                                                                double factor,
                                                                gradpress_text** error);
/* This rank's share of what error feedback keeps of a tensor; zeros where it keeps nothing. */
GRADPRESS_C_API gradpress_code gradpress_engine_residual(gradpress_engine* engine, uint32_t tensor,
                                                         float* out, uint64_t elements,
                                                         gradpress_text** error);
/* Adds to it. */
GRADPRESS_C_API gradpress_code gradpress_engine_add_residual(gradpress_engine* engine,
                                                             uint32_t tensor, const float* residual,
                                                             uint64_t elements,
                                                             gradpress_text** error);
/* All that this rank's next step needs, as bytes for gradpress_engine_restore. */
GRADPRESS_C_API gradpress_code gradpress_engine_checkpoint(gradpress_engine* engine,
                                                           gradpress_text** bytes,
                                                           gradpress_text** error);
/* The residuals that a rank's checkpoint holds: float32, tensor after tensor, in the order that
 * gradpress_engine_make was given. For jobs that go on with another number of workers. */
GRADPRESS_C_API gradpress_code gradpress_checkpoint_residuals(const void* bytes, size_t size,
                                                              gradpress_text** residuals,
                                                              gradpress_text** error);
/* Errors: GRADPRESS_INVALID_ARGUMENT if tensors, codecs or world differ, GRADPRESS_CORRUPT_PAYLOAD;
 * the engine is then unchanged. */
GRADPRESS_C_API gradpress_code gradpress_engine_restore(gradpress_engine* engine, const void* bytes,
                                                        size_t size, gradpress_text** error);
/* What runs, as JSON: {"running": "acpsgd:4", "summary": "…for people…", "plan":
 * {gradpress-plan-1}, "kinds": 2 (steps that take turns), "tensors": [{"name", "elements",
 * "codec"}]} */
GRADPRESS_C_API gradpress_code gradpress_engine_describe(gradpress_engine* engine,
                                                         gradpress_text** description,
                                                         gradpress_text** error);

/* ---- Codecs ---------------------------------------------------------------------------------- */

/* One tensor's codec with its state (residual, factors, random counter).
 * Threads: one at a time. */
typedef struct gradpress_codec gradpress_codec;

/* codec: "topk:0.01"; dims: the tensor's shape.
 * Options: seed, tensor, site, first_shard, source, feedback as gradpress::StateOptions. */
GRADPRESS_C_API gradpress_code gradpress_codec_make(const char* codec, const uint64_t* dims,
                                                    size_t count_of_dims, const char* options,
                                                    gradpress_codec** out, gradpress_text** error);
GRADPRESS_C_API void gradpress_codec_free(gradpress_codec* codec);
/* As JSON: {"name", "rounds", "reducible", "payload_type", "fixed_size", "feedback", "combine"}. */
GRADPRESS_C_API gradpress_code gradpress_codec_describe(const gradpress_codec* codec,
                                                        gradpress_text** description,
                                                        gradpress_text** error);
/* The most bytes a payload has in a round. */
GRADPRESS_C_API size_t gradpress_codec_bound(const gradpress_codec* codec, uint32_t round);
/* Writes the payload of gradient + residual and keeps in the residual what it does not carry.
 * reduced: in rounds after the first, the previous round's payload summed over the workers. */
GRADPRESS_C_API gradpress_code gradpress_codec_encode(gradpress_codec* codec, const float* gradient,
                                                      uint64_t elements, uint64_t step,
                                                      uint32_t round, const void* reduced,
                                                      size_t reduced_bytes, void* payload,
                                                      size_t capacity, size_t* used,
                                                      gradpress_text** error);
/* Adds weight × (what the payload carries) to `out`. The payload may be hostile. */
GRADPRESS_C_API gradpress_code gradpress_codec_decode(gradpress_codec* codec, const void* payload,
                                                      size_t bytes, uint64_t step, float weight,
                                                      float* out, uint64_t elements,
                                                      gradpress_text** error);
/* Ends the step after the last decode; `workers`: how many gradients the payloads stand for. */
GRADPRESS_C_API gradpress_code gradpress_codec_finish(gradpress_codec* codec, uint32_t workers,
                                                      float* out, uint64_t elements,
                                                      gradpress_text** error);
/* All that the state holds beside the residual (factors, parity, thresholds), laid out as
 * docs/wire_format.md says; for a checkpoint, or to begin elsewhere from the same factors. */
GRADPRESS_C_API gradpress_code gradpress_codec_save_extras(const gradpress_codec* codec,
                                                           gradpress_text** bytes,
                                                           gradpress_text** error);
GRADPRESS_C_API gradpress_code gradpress_codec_load_extras(gradpress_codec* codec,
                                                           const void* bytes, size_t size,
                                                           gradpress_text** error);
/* Reads and replaces the residual; zeros where the codec keeps none. */
GRADPRESS_C_API gradpress_code gradpress_codec_residual(const gradpress_codec* codec, float* out,
                                                        uint64_t elements, gradpress_text** error);
GRADPRESS_C_API gradpress_code gradpress_codec_load_residual(gradpress_codec* codec,
                                                             const float* residual,
                                                             uint64_t elements,
                                                             gradpress_text** error);
/* All codecs, as JSON: [{"name": "topk", "usage": "topk:RATIO", "example": "topk:0.01", "about":
 * "…", "value": "ratio", "keys": [{"name": "value", "words": ["fp32", …]}, {"name": "sample",
 * "least": 0.0001, "most": 1, "whole": false}, …], and of the example what gradpress_codec_facts
 * says}, …]. */
GRADPRESS_C_API gradpress_code gradpress_codec_list(gradpress_text** list, gradpress_text** error);
/* What a codec's text says and what is true of that codec, as JSON: {"name": "topk", "text":
 * "topk:0.01", the shortest, "family": "raw" | "cast" | "sign" | "quantizer" | "sparse" |
 * "low-rank", "value": 0.01 or null, "keys": {"value": "fp16"}, those that differ from their
 * defaults, "reducible", "payload_type", "fixed_size", "combine", "rounds", "cycle": kinds of steps
 * that take turns, "draws": "none" | "any" | "shared", "feedback": "needed" | "possible" | "none"}.
 */
GRADPRESS_C_API gradpress_code gradpress_codec_facts(const char* codec, gradpress_text** facts,
                                                     gradpress_text** error);
/* The bytes that a tensor's payloads take in a step, all rounds together; the mean where kinds of
 * steps take turns. */
GRADPRESS_C_API gradpress_code gradpress_codec_step_bytes(const char* codec, const uint64_t* dims,
                                                          size_t count_of_dims, uint64_t* bytes,
                                                          gradpress_text** error);
/* Whether the text names a codec; the error says what is wrong with it. */
GRADPRESS_C_API gradpress_code gradpress_codec_check(const char* codec, gradpress_text** error);

/* ---- Planner --------------------------------------------------------------------------------- */

/* Decides for every tensor of a trace; stores a plan (gradpress-plan-1).
 * Request: trace_file, cluster_file, codecs […], strategy "best", extended_tree, fusion, as
 * gradpress::PlanRequest in gradpress/plan.h. Threads: any number at once. */
GRADPRESS_C_API gradpress_code gradpress_plan_make(const char* request, gradpress_text** plan,
                                                   gradpress_text** error);

#ifdef __cplusplus
}
#endif

#endif
