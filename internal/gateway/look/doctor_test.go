package look

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/testutil"
)

// TestDoctorNamesTheGatewaysFile uses up the ports of a rule of a map: doctor has to
// find it, and to send the administrator to the file, not to change the table.
func TestDoctorNamesTheGatewaysFile(t *testing.T) {
	w := newWorld(t)
	w.apply(`gateway:
  interfaces: {wan: wan0, lan: lan0}
  nat:
    - snat: {from: 192.168.0.0/24, to: 203.0.113.7, ports: 2000-2019}
    - snat: {from: 192.168.1.0/24, to: 203.0.113.7, ports: 3000-3019}
`, w.facts())
	w.connect(w.inside, "203.0.113.100:7", 20)
	ctx, stop := context.WithTimeout(t.Context(), testutil.Patience(time.Minute))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			err := w.inside.Do(func() error {
				_, err := w.datagram("203.0.113.100:7")
				return err
			})
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	_, r, err := doctor.Look(t.Context(), collect.RecordOptions{Options: collect.Options{Netns: w.gateway}, For: testutil.Patience(500 * time.Millisecond)})
	stop()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	f := r.Find("snat-ports-exhausted")
	if f == nil {
		t.Fatalf("not found: %+v", r.Checks)
	}
	named := false
	for _, remedy := range f.Remedies {
		named = named || strings.Contains(remedy.Title, "give nat[0] snat in the gateway's file more ports")
		for _, c := range remedy.Changes {
			if strings.Contains(c.Target, "natkit") {
				t.Errorf("doctor would change %s", c.Target)
			}
		}
	}
	if !named {
		t.Errorf("remedies %+v", f.Remedies)
	}
	for _, f := range r.Findings {
		t.Log(f.ID, f.Title)
	}
}
