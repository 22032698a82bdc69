//go:build ignore
// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// Starts and ends of translated connections.

#include "../include/skb.h"
#include "../include/tracked.h"

char LICENSE[] SEC("license") = "GPL";

const volatile __u32 only_netns;

/* Where the kernel frees entries of the tracker: the functions that call kmem_cache_free for
 * them, from their first byte to the first one behind them. A second range is empty where there is one. */
const volatile __u64 free_first, free_behind, destroy_first, destroy_behind;

/* starts: an event for each start, besides that for each end. */
const volatile bool starts = true;

/* The ring wakes its reader when so many bytes wait: otherwise the reader comes by itself. */
const volatile __u64 wake_at = 1 << 20;

enum {
	SESSION_START = 1,
	SESSION_END = 2,
};

/* struct session is an event: addresses and ports in network byte order, times of the monotonic clock. */
struct session {
	__u64 time_ns;
	__u64 started_ns; /* 0: before the program was there, or the first packet was not seen */
	__be32 src[4];
	__be32 dst[4];
	__be32 reply_src[4];
	__be32 reply_dst[4];
	__be16 sport;
	__be16 dport;
	__be16 reply_sport;
	__be16 reply_dport;
	__u16 family;
	__u8 protocol;
	__u8 kind;
	__u32 status;
	__u16 zone;
	__u16 reply_zone;
	__u32 pad;
};

/* Makes bpf2go see the type. */
const struct session *const session_type __attribute__((unused));

/* What has started, by the address of the entry, with its time. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1); /* set before loading */
	__type(key, __u64);
	__type(value, __u64);
} started SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

/* Starts and ends that found no room in the ring. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

static __always_inline void emit(struct nf_conn *ct, __u8 kind, __u32 status, __u64 now, __u64 since)
{
	struct nf_conntrack_tuple original, reply;
	struct session *s = bpf_ringbuf_reserve(&events, sizeof(*s), 0);

	if (!s) {
		__u32 which = kind == SESSION_END;
		__u64 *count = bpf_map_lookup_elem(&lost, &which);

		if (count)
			(*count)++;
		return;
	}
	original = READ(ct, tuplehash[0].tuple);
	reply = READ(ct, tuplehash[1].tuple);
	s->time_ns = now;
	s->started_ns = since;
	__builtin_memcpy(s->src, original.saddr, sizeof(s->src));
	__builtin_memcpy(s->dst, original.daddr, sizeof(s->dst));
	__builtin_memcpy(s->reply_src, reply.saddr, sizeof(s->reply_src));
	__builtin_memcpy(s->reply_dst, reply.daddr, sizeof(s->reply_dst));
	s->sport = original.sport;
	s->dport = original.dport;
	s->reply_sport = reply.sport;
	s->reply_dport = reply.dport;
	s->family = original.l3num;
	s->protocol = original.protonum;
	s->kind = kind;
	s->status = status;
	read_zones(ct, &s->zone, &s->reply_zone);
	s->pad = 0;
	bpf_ringbuf_submit(s, bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >= wake_at ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

static __always_inline bool is_ours(struct nf_conn *ct)
{
	struct net *net = READ(ct, ct_net.net);

	return READ(net, ns.inum) == only_netns;
}

/* net:net_dev_start_xmit is passed by each packet on its way to an interface, behind all rules:
 * the entry of a first packet is in the table by then. Of a connection to a program of this host the
 * first one that leaves is an answer, while the entry is not assured. */
SEC("raw_tp/net_dev_start_xmit")
int leaves(__u64 *ctx)
{
	struct sk_buff___tracked *skb = (void *)ctx[0];
	unsigned long nfct = READ(skb, _nfct);
	__u32 info = nfct & NFCT_INFOMASK;
	__u64 key = nfct & ~(unsigned long)NFCT_INFOMASK, now;
	struct nf_conn *ct = (void *)key;
	__u32 status;

	if (!ct || info == IP_CT_ESTABLISHED)
		return 0;
	status = READ(ct, status);
	if (!(status & IPS_NAT_MASK) || status & (IPS_ASSURED | IPS_TEMPLATE) || !is_ours(ct) || bpf_map_lookup_elem(&started, &key))
		return 0;
	now = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&started, &key, &now, BPF_NOEXIST))
		return 0; /* another CPU was faster */
	if (starts)
		emit(ct, SESSION_START, status, now, now);
	return 0;
}

/* kmem:kmem_cache_free is passed by all that is freed, an entry of the tracker with all that it
 * had: what called it says whether it is one. */
SEC("raw_tp/kmem_cache_free")
int freed(__u64 *ctx)
{
	__u64 site = ctx[0], key = ctx[1], since = 0, *at;
	struct nf_conn *ct = (void *)key;
	__u32 status;

	if (likely(site - free_first >= free_behind - free_first && site - destroy_first >= destroy_behind - destroy_first))
		return 0;
	status = READ(ct, status);
	if (!(status & IPS_NAT_MASK) || !is_ours(ct))
		return 0;
	at = bpf_map_lookup_elem(&started, &key);
	if (at) {
		since = *at;
		bpf_map_delete_elem(&started, &key);
	} else if (!is_hashed(ct)) {
		return 0; /* its first packet was dropped on its way: it was never in the table */
	}
	emit(ct, SESSION_END, status, bpf_ktime_get_ns(), since);
	return 0;
}
