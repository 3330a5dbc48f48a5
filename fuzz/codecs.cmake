# The codec texts that have a fuzzer. A codec that is not built is skipped by its fuzzer at once.
set(GRADPRESS_FUZZED_CODECS
  none fp16 bf16 sign signum:0.9 efsign onebit
  topk:0.1 randomk:0.1 randomk:0.1:unbiased=1 dgc:0.1 redsync:0.1 redsync-q:0.1
  topk:0.1:index=rice topk:0.1:index=rice:value=2bit topk:0.1:value=bf16 dgc:0.3:index=rice:value=fp16
  chunktopk:4/16 chunktopk:1/16:index=rice:value=2bit
  randomk:0.3:value=fp16 randomk:0.3:value=2bit
  qsgd:2 qsgd:4:block=16 qsgd:8 terngrad natural int8 int8:block=16 kashin:2 kashin:4 kashin:8
  powersgd:2 powersgd:2:rate=2 acpsgd:2)
