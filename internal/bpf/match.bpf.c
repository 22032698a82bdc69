//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The filter as programs have it: it parses a packet and asks flow_matches. The
 * packet is one of a map, where a tracing program has an skb. */
#include "include/flow.h"

enum {
	FRAMES = 512,
	FRAME_SIZE = 192,
};

struct frame {
	__u16 network_header;
	__be16 protocol;
	__u32 tail;
	unsigned char data[FRAME_SIZE];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct frame);
	__uint(max_entries, FRAMES);
} frames SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct flow);
	__uint(max_entries, FRAMES);
} flows SEC(".maps");

struct bpf_raw_tracepoint_args {
	__u64 args[0];
};

/* match_frame has the index of the frame as its argument. */
SEC("raw_tp")
int match_frame(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 index = ctx->args[0];
	const struct frame *frame = bpf_map_lookup_elem(&frames, &index);
	struct flow *parsed = bpf_map_lookup_elem(&flows, &index);
	struct flow f = {};

	if (!frame || !parsed)
		return -1;
	parse_flow(frame->data, frame->network_header, frame->tail, frame->protocol, &f);
	*parsed = f;
	return flow_matches(&f);
}

char LICENSE[] SEC("license") = "GPL";
