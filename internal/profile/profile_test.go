package profile

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	pprof "github.com/google/pprof/profile"

	"github.com/natkit/natkit/internal/snapshot"
)

// frames makes a stack of "outer;inner", "name[module]" each.
func frames(text string) []Frame {
	var list []Frame
	for part := range strings.SplitSeq(text, ";") {
		name, module, _ := strings.Cut(strings.TrimSuffix(part, "]"), "[")
		list = append(list, Frame{Function: name, Module: module})
	}
	return list
}

// sampleStacks are 100 samples in 10 s of 2 CPUs.
func sampleStacks() *Stacks {
	s := &Stacks{Kernel: "6.1.0-test", Event: "cpu-clock", Seconds: 10, Hz: 100, CPUs: 2, Lost: 3}
	var c Collector
	const rx = "handle_softirqs;net_rx_action;ip_rcv;"
	c.Add(frames(rx+"nf_conntrack_in"), 30, false)
	c.Add(frames(rx+"nf_conntrack_in;__nf_conntrack_find_get.isra.0"), 4, true)
	c.Add(frames(rx+"nf_conntrack_in;__nf_conntrack_find_get.isra.0"), 4, false)
	c.Add(frames(rx+"nf_conntrack_in;hash_conntrack_raw[nf_conntrack]"), 2, false)
	c.Add(frames(rx+"fib_table_lookup"), 10, false)
	c.Add(frames("handle_softirqs;net_rx_action"), 10, false)
	c.Add(frames("handle_softirqs"), 20, false)
	c.Add([]Frame{{"curl</script><b>", User}}, 20, false)
	c.Add(frames("do_idle;default_idle"), 1897, true)
	c.Into(s)
	return s
}

func TestClassOfStack(t *testing.T) {
	c := newClassifier(classes)
	for _, tt := range []struct {
		stack   string
		want    string
		receive bool
	}{
		{"net_rx_action;__napi_poll;process_backlog;__netif_receive_skb_one_core;ip_rcv;nf_hook_slow;nf_conntrack_in;__nf_conntrack_find_get", "conntrack lookup", true},
		// What is shared counts for its caller.
		{"net_rx_action;ip_rcv;nf_hook_slow;nf_conntrack_in;nf_nat_inet_fn;nf_nat_setup_info;nf_conntrack_find_get;__nf_conntrack_find_get", "NAT setup", true},
		{"net_rx_action;ip_rcv;nf_hook_slow;nf_confirm;__nf_conntrack_confirm;hash_conntrack_raw;__siphash_unaligned", "conntrack insert", true},
		{"net_rx_action;br_handle_frame;br_nf_pre_routing;nf_hook_slow;ip_sabotage_in;br_handle_frame_finish;br_pass_frame_up;netif_receive_skb;__netif_receive_skb_core", ClassReceiveRest, true},
		{"net_rx_action;ip_rcv;nf_hook_slow;ip_sabotage_in", "bridge netfilter", true},
		{"do_syscall_64;tcp_sendmsg;tcp_write_xmit;read_tsc", "local delivery and TCP", false},
		{"net_rx_action;ip_rcv;nf_hook_slow;nf_conntrack_in;__nf_conntrack_alloc.constprop.0;kmem_cache_alloc_noprof", "conntrack insert", true},
		{"net_rx_action;ip_forward;ip_output;nf_hook_slow;nf_confirm;__nf_conntrack_confirm;_raw_spin_lock", "conntrack insert", true},
		{"net_rx_action;ip_rcv;nf_hook_slow;nf_conntrack_in;nf_conntrack_tcp_packet", "conntrack state", true},
		{"net_rx_action;ip_rcv;nf_hook_slow;nf_nat_ipv4_pre_routing;nf_nat_inet_fn;nft_nat_do_chain;nft_do_chain;nft_nat_eval;nf_nat_setup_info;nf_conntrack_tuple_taken", "NAT setup", true},
		{"net_rx_action;ip_rcv;nf_hook_slow;nf_nat_ipv4_pre_routing;nf_nat_inet_fn;nf_nat_packet;nf_nat_manip_pkt;skb_ensure_writable", "NAT rewrite", true},
		{"net_rx_action;ip_rcv;nf_hook_slow;nft_do_chain_ipv4;nft_do_chain;nft_payload_eval", "rules", true},
		{"net_rx_action;ip_rcv;iptable_filter_hook;ipt_do_table;multiport_mt", "rules", true},
		// Matches and trackers that begin as TCP's own functions do.
		{"net_rx_action;ip_rcv;nf_hook_slow;ipt_do_table;tcp_mt[xt_tcpudp]", "rules", true},
		{"net_rx_action;ip_rcv;nf_hook_slow;nf_conntrack_in;nf_conntrack_tcp_packet;tcp_new", "conntrack state", true},
		{"net_rx_action;ip_rcv;nf_hook_slow;nf_nat_ipv4_in;nf_nat_packet;l4proto_manip_pkt;tcp_manip_pkt", "NAT rewrite", true},
		{"net_rx_action;ip_rcv;nf_hook_slow;ipt_do_table;connlimit_mt;nf_conncount_count;nf_conncount_tree_gc", "rules", true},
		// Filling in a message is the work of who wants it.
		{"net_rx_action;nf_confirm;__nf_conntrack_confirm;nf_conntrack_eventmask_report;ctnetlink_conntrack_event;ctnetlink_fill_info.constprop.0;nla_put", "conntrack events", true},
		{"do_syscall_64;netlink_dump;ctnetlink_dump_table;ctnetlink_fill_info;ctnetlink_dump_tuples_ip", "conntrack listing", false},
		{"net_rx_action;nf_ingress;nf_flow_offload_ip_hook;flow_offload_lookup;rhashtable_jhash2", "flowtable", true},
		{"net_rx_action;ip_rcv;nf_hook_slow;ip_vs_in_hook;ip_vs_nat_xmit;ip_vs_conn_in_get", "IPVS", true},
		{"net_rx_action;netdev_frame_hook[openvswitch];do_execute_actions[openvswitch]", "bridge", true},
		{"net_rx_action;ip_rcv;nf_hook_slow", "netfilter hooks", true},
		{"net_rx_action;__netif_receive_skb_core;br_handle_frame;br_nf_pre_routing", "bridge netfilter", true},
		{"net_rx_action;br_handle_frame;br_nf_pre_routing;br_nf_hook_thresh;br_nf_pre_routing_finish;br_handle_frame_finish;br_forward", "bridge", true},
		{"net_rx_action;ip_rcv;ip_rcv_finish_core.isra.0;fib_validate_source", "routing", true},
		{"net_rx_action;ip_local_deliver_finish;tcp_v4_rcv;__inet_lookup_established", "local delivery and TCP", true},
		{"net_rx_action;virtnet_poll;page_to_skb", ClassReceiveRest, true},
		// What a sender runs: netfilter counts, and is no packet receive.
		{"entry_SYSCALL_64;do_syscall_64;udp_sendmsg;ip_send_skb;__ip_local_out;nf_hook_slow;nf_conntrack_in", "conntrack lookup", false},
		{"do_syscall_64;udp_sendmsg;ip_output;ip_finish_output2;__dev_queue_xmit", "sending", false},
		// A softirq within a send is not sending; nor is an interrupt conntrack's.
		{"do_syscall_64;udp_sendmsg;__dev_queue_xmit;__local_bh_enable_ip;do_softirq.part.0;handle_softirqs;net_rx_action;skb_defer_free_flush", ClassReceiveRest, true},
		{"net_rx_action;nf_conntrack_in;asm_sysvec_apic_timer_interrupt;sysvec_apic_timer_interrupt;hrtimer_interrupt", ClassKernelRest, false},
		{"net_rx_action;nf_conntrack_in;asm_sysvec_call_function;handle_softirqs;rcu_core", ClassKernelRest, false},
		{"do_syscall_64;ksys_read;vfs_read", ClassKernelRest, false},
		{"net_rx_action;veth_poll;bpf_prog_0123456789abcdef_sink[bpf]", "eBPF programs", true},
		{"do_syscall_64;__sys_bpf;bpf_prog_load", ClassKernelRest, false},
		{"tcp_server[user]", ClassUser, false},
		{Unknown, ClassKernelRest, false},
		{"kthread;worker_thread;gc_worker;nf_ct_gc_expired", "conntrack remove", false},
	} {
		if got := c.stack(frames(tt.stack)); got != (work{tt.want, tt.receive}) {
			t.Errorf("%s:\n%+v, want %q, %v", tt.stack, got, tt.want, tt.receive)
		}
	}
}

func TestIdle(t *testing.T) {
	const swapper = "secondary_startup_64;start_secondary;cpu_startup_entry;do_idle;default_idle_call;default_idle;pv_native_safe_halt"
	for _, tt := range []struct {
		stack    string
		idleTask bool
		want     bool
	}{
		{swapper, true, true},
		{"start_kernel;cpu_startup_entry;do_idle;cpuidle_enter;cpuidle_enter_state;intel_idle", true, true},
		{"cpu_startup_entry;do_idle;schedule_idle;__schedule", true, true},
		{Unknown, true, true},
		// Work that interrupted the idle task.
		{swapper + ";asm_common_interrupt;common_interrupt;__irq_exit_rcu;handle_softirqs;net_rx_action;ip_rcv", true, false},
		{"cpu_startup_entry;do_idle;arch_cpu_idle;el1h_64_irq;el1_interrupt;irq_exit_rcu;__do_softirq;net_rx_action", true, false},
		{"do_idle;default_idle;apic_timer_interrupt;irq_exit;__do_softirq;net_rx_action", true, false}, // 5.4
		{swapper + ";asm_sysvec_apic_timer_interrupt;sysvec_apic_timer_interrupt;hrtimer_interrupt", true, false},
		// Idle injection is a task of its own.
		{"kthread;smpboot_thread_fn;idle_inject_fn;play_idle_precise;do_idle;cpuidle_enter", false, true},
		{"do_syscall_64;ksys_read", false, false},
		{"idle[user]", false, false},
	} {
		if got := isIdle(frames(tt.stack), tt.idleTask); got != tt.want {
			t.Errorf("%s: idle %v, want %v", tt.stack, got, tt.want)
		}
	}
}

func TestSummarize(t *testing.T) {
	p := sampleStacks().Summarize()
	if p.Samples != 100 || p.Idle != 1897 || p.Lost != 3 || p.Receive != 60 {
		t.Errorf("samples %d, idle %d, lost %d, receive %d", p.Samples, p.Idle, p.Lost, p.Receive)
	}
	var there []snapshot.ProfileClass
	for _, c := range p.Classes {
		if c.Samples > 0 {
			there = append(there, c)
		}
	}
	wantClasses := []snapshot.ProfileClass{
		{Name: "conntrack lookup", Receive: true, Samples: 40}, {Name: "routing", Receive: true, Samples: 10},
		{Name: ClassReceiveRest, Receive: true, Samples: 10},
		{Name: ClassKernelRest, Samples: 20}, {Name: ClassUser, Samples: 20},
	}
	if diff := cmp.Diff(wantClasses, there); diff != "" {
		t.Error(diff)
	}
	wantFunctions := []snapshot.ProfileSymbol{
		{Function: "nf_conntrack_in", Class: "conntrack lookup", Self: 30, Total: 40},
		{Function: "handle_softirqs", Class: ClassKernelRest, Self: 20, Total: 80},
		{Function: "curl</script><b>", Module: User, Class: ClassUser, Self: 20, Total: 20},
		{Function: "net_rx_action", Class: ClassReceiveRest, Self: 10, Total: 60},
		{Function: "fib_table_lookup", Class: "routing", Self: 10, Total: 10},
		{Function: "__nf_conntrack_find_get.isra.0", Class: "conntrack lookup", Self: 8, Total: 8},
		{Function: "hash_conntrack_raw", Module: "nf_conntrack", Class: "conntrack lookup", Self: 2, Total: 2},
		{Function: "ip_rcv", Class: "routing", Self: 0, Total: 50},
	}
	if diff := cmp.Diff(wantFunctions, p.Functions); diff != "" {
		t.Error(diff)
	}
}

// TestRecursion: a function counts once in a stack.
func TestRecursion(t *testing.T) {
	s := &Stacks{Stacks: []Stack{{frames("a;b;a;b;a"), 5}}}
	want := []snapshot.ProfileSymbol{
		{Function: "a", Class: ClassKernelRest, Self: 5, Total: 5}, {Function: "b", Class: ClassKernelRest, Total: 5},
	}
	if diff := cmp.Diff(want, s.Summarize().Functions); diff != "" {
		t.Error(diff)
	}
}

func TestEmpty(t *testing.T) {
	s := &Stacks{}
	if p := s.Summarize(); p.Samples != 0 || len(p.Functions) != 0 || len(p.Classes) == 0 {
		t.Errorf("%+v", p)
	}
	for name, write := range map[string]func(*Stacks, *bytes.Buffer) error{
		"folded": func(s *Stacks, b *bytes.Buffer) error { return s.WriteFolded(b) },
		"pprof":  func(s *Stacks, b *bytes.Buffer) error { return s.WritePprof(b) },
		"flame":  func(s *Stacks, b *bytes.Buffer) error { return s.WriteFlame(b) },
	} {
		var b bytes.Buffer
		if err := write(s, &b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFolded(t *testing.T) {
	var b bytes.Buffer
	if err := sampleStacks().WriteFolded(&b); err != nil {
		t.Fatal(err)
	}
	const rx = "handle_softirqs;net_rx_action;ip_rcv;"
	want := rx + "nf_conntrack_in 30\ncurl</script><b>[user] 20\nhandle_softirqs 20\nhandle_softirqs;net_rx_action 10\n" +
		rx + "fib_table_lookup 10\n" + rx + "nf_conntrack_in;__nf_conntrack_find_get.isra.0 8\n" +
		rx + "nf_conntrack_in;hash_conntrack_raw[nf_conntrack] 2\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

// TestPprof reads the file back with the library that others use.
func TestPprof(t *testing.T) {
	s := sampleStacks()
	var b bytes.Buffer
	if err := s.WritePprof(&b); err != nil {
		t.Fatal(err)
	}
	p, err := pprof.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	var samples, nanoseconds, lookup int64
	for _, sample := range p.Sample {
		samples += sample.Value[0]
		nanoseconds += sample.Value[1]
		if sample.Label["class"][0] == "conntrack lookup" {
			lookup += sample.Value[0]
		}
	}
	if samples != 100 || nanoseconds != 1e9 || lookup != 40 || p.DurationNanos != 10e9 {
		t.Errorf("%d samples, %d ns, %d of lookups, %d ns long", samples, nanoseconds, lookup, p.DurationNanos)
	}
	if innermost := p.Sample[0].Location[0].Line[0].Function.Name; innermost != "nf_conntrack_in" {
		t.Errorf("innermost of the first is %s", innermost)
	}
}

// TestFlameEscapes: what a process calls itself is data in the page.
func TestFlameEscapes(t *testing.T) {
	var b bytes.Buffer
	if err := sampleStacks().WriteFlame(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	if n := strings.Count(page, "</script>"); n != 1 {
		t.Errorf("%d ends of scripts in the page", n)
	}
	for _, bad := range []string{"http://", "https://", "src=", "<link", "@import", "<b>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q in it", bad)
		}
	}
	for _, want := range []string{"<noscript>", "Linux 6.1.0-test", "100 samples a second", "default-src 'none'"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// BenchmarkSummarize has as many deep stacks as the kernel's table.
func BenchmarkSummarize(b *testing.B) {
	s := &Stacks{Hz: 99, CPUs: 64, Seconds: 60}
	for i := range 8192 {
		stack := frames("do_syscall_64;handle_softirqs;net_rx_action;ip_rcv;nf_hook_slow;nf_conntrack_in")
		for d := range 60 {
			stack = append(stack, Frame{Function: fmt.Sprintf("f%d", i>>(d/5)+d)})
		}
		s.Stacks = append(s.Stacks, Stack{stack, uint64(i + 1)})
	}
	for b.Loop() {
		s.Summarize()
		if err := s.WriteFlame(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
