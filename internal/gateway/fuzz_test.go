package gateway

import (
	"errors"
	"reflect"
	"testing"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/testutil"
)

// Whatever a file says, it is read and checked without a panic; what Check does not
// refuse Compile takes; and a file that was read is written so that it reads the same.
func FuzzCheck(f *testing.F) {
	f.Add(every)
	f.Add("gateway:\n  define: {o: [10.0.0.1, $b], b: 10.0.0.2}\n  sets: {a: {addresses: [$o, 192.0.2.0/24]}, w: {ports: [tcp/80]}}\n  nat:\n  - masquerade: {from: [$a, 10.1.0.0/16], except-to: $a, port: [$w, udp/53]}\n")
	f.Add(inFile("masquerade: {}", "notrack: {on: 203.0.113.7}", "static: {inside: 10.0.0.1, outside: 203.0.113.7, stateless: on}"))
	f.Add(inFile6("netmap: {inside: 'fd00::/8', outside: '::/0'}", "snat: {to: ['::1-ff00::'], ports: keep}", "dnat: {on: eth0, port: udp/1-65535, to: '[::2]:1'}"))
	f.Add(inFile("snat: {from: [0.0.0.0/0, 255.255.255.255], to: 0.0.0.0-255.255.255.255}", "dnat: {on: lan, port: ip/255, to: 1.1.1.1, from: 0.0.0.0/0}"))
	f.Add(inFile("snat: {to: 203.0.113.1}", "snat: {to: 203.0.113.1, except-to: 10.0.0.0/8}", "dnat: {on: eth0, to: 10.0.0.1, hairpin: on}"))
	for _, text := range hostile(1000) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		file, err := Parse("f", []byte(text))
		if err != nil {
			var syntax *document.SyntaxError
			if !errors.As(err, &syntax) {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		for _, facts := range []Facts{{}, hostWithDocker()} {
			checksOut(t, file, facts)
		}
		again, err := Parse("f", Marshal(&file.Config))
		if err != nil {
			t.Fatalf("%s\n%v", Marshal(&file.Config), err)
		}
		for _, c := range []*Config{&file.Config, &again.Config} {
			for name, s := range c.Sets {
				s.set = nil
				c.Sets[name] = s
			}
		}
		if !reflect.DeepEqual(file.Config, again.Config) {
			t.Fatalf("not the same:\n%s", Marshal(&file.Config))
		}
	})
}

func hostWithDocker() Facts {
	facts := here()
	facts.Foreign = docker()
	return facts
}

func checksOut(t *testing.T, file *File, facts Facts) {
	t.Helper()
	refused := false
	for _, x := range Check(file, facts) {
		refused = refused || x.Severity == Refuse
		if x.ID == "not-compilable" {
			t.Fatalf("check has no place for: %s", x.Message)
		}
		if x.Message == "" || x.Advice == "" {
			t.Fatalf("%+v", x)
		}
	}
	if _, err := Compile(&file.Config, facts); err != nil && !refused {
		t.Fatal(err)
	}
}
