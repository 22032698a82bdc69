package bpf

import (
	"reflect"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// place is where a field lies, in bytes.
type place struct{ Offset, Size int }

// namesInC maps the fields of flow to those of struct flow.
var namesInC = map[string]string{
	"Source": "saddr", "Destination": "daddr", "SourcePort": "sport", "DestinationPort": "dport", "L3": "l3", "Length": "length", "Proto": "proto",
	"TCPFlags": "tcp_flags", "ICMPType": "icmp_type", "ICMPCode": "icmp_code", "Flags": "flags", "TTL": "ttl", "_": "pad",
}

func layoutOf(p flow) map[string]place {
	t := reflect.TypeOf(p)
	layout := map[string]place{"whole": {0, int(t.Size())}}
	for i := range t.NumField() {
		f := t.Field(i)
		layout[namesInC[f.Name]] = place{int(f.Offset), int(f.Type.Size())}
	}
	return layout
}

func layoutOfStruct(t *testing.T, s *btf.Struct) map[string]place {
	t.Helper()
	layout := map[string]place{"whole": {0, int(s.Size)}}
	for _, m := range s.Members {
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			t.Fatal(err)
		}
		layout[m.Name] = place{int(m.Offset.Bytes()), size}
	}
	return layout
}
