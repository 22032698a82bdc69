package build

import (
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/fake"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/testutil"
)

// TestSetGateway: a lab's engine has the file of the stage in force, and nothing after.
func TestSetGateway(t *testing.T) {
	testutil.NeedRoot(t)
	ns, e := testutil.Namespace(t), &fake.Engine{}
	l := &Lab{nodes: []*Node{{Name: "gw", Netns: ns}}, engines: engine.Set{e}}
	for _, step := range []*lab.Gateway{
		{Node: "gw", Config: gateway.Config{NAT: []gateway.Rule{{Masquerade: &gateway.Masquerade{}}}}},
		{Node: "gw", Config: gateway.Config{Engine: gateway.EngineNetfilter}},
		nil,
	} {
		if err := l.SetGateway(t.Context(), step); err != nil {
			t.Fatal(err)
		}
		s, err := e.Read(ns, nil)
		if err != nil || s.Present != (step != nil) {
			t.Errorf("%+v: %+v, %v", step, s, err)
		}
	}
}
