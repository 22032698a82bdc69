package collect

import (
	"bytes"
	"cmp"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

func TestBundleCarriesNATRules(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.NeedProgram(t, "nft")
	err := ns.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(`table ip nat { chain post {
			type nat hook postrouting priority srcnat
			ip saddr 198.18.0.0/16 meta l4proto tcp masquerade to :1024-2047 random
		}
		}`)
		return cmd.Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	live, err := WriteBundle(t.Context(), &file, RecordOptions{Options: Options{Netns: ns}})
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadBundle(&file, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range live.Snapshots {
		if s.NATRules == nil || len(s.NATRules.Rules) != 1 || s.NATRules.Rules[0].Text != "masquerade to :1024-2047 random" {
			t.Errorf("snapshot %d has the rules %+v, %q", i, s.NATRules, s.PartError("nat_rules"))
		}
		if !reflect.DeepEqual(s.NATRules, again.Snapshots[i].NATRules) {
			t.Errorf("the bundle has other rules: %+v", again.Snapshots[i].NATRules)
		}
	}
}

func TestOldBundleHasNoNATRules(t *testing.T) {
	var file bytes.Buffer
	b, err := snapshot.NewBundleWriter(&file, time.Time{})
	for _, name := range []string{"0/head.json", "0/tail.json", "1/head.json", "1/tail.json"} {
		err = cmp.Or(err, b.Add(name, []byte("{}")))
	}
	if err := cmp.Or(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	rec, err := ReadBundle(&file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if why := rec.Last().PartError("nat_rules"); rec.Last().NATRules != nil || !strings.Contains(why, "not in the bundle") {
		t.Errorf("rules %+v, %q", rec.Last().NATRules, why)
	}
}
