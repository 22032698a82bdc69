package behaviour

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/natkit/natkit/internal/gateway"
)

// lateWorld keeps one mapping, from its last packet, and loses some time before each of
// the first packets.
type lateWorld struct {
	World
	loses []time.Duration
	timer time.Duration
	ends  time.Time
}

func (w *lateWorld) Apply(*gateway.Plan) error { return nil }
func (w *lateWorld) Close() error              { return nil }

func (w *lateWorld) Pass(d time.Duration) error {
	time.Sleep(d)
	return nil
}

func (w *lateWorld) Timers(values map[Timer]time.Duration) error {
	w.timer = values[UDP]
	return nil
}

func (w *lateWorld) Send(Host, ...[]byte) (Arrivals, error) {
	w.ends = time.Now().Add(w.timer)
	if len(w.loses) > 0 {
		time.Sleep(w.loses[0])
		w.loses = w.loses[1:]
	}
	return nil, nil
}

func (w *lateWorld) Mappings() ([]Mapping, error) {
	if time.Now().Before(w.ends) {
		return make([]Mapping, 1), nil
	}
	return nil, nil
}

// stays is a case for a timer of 2 s: half of it after the packet the mapping is there.
var stays = Case{ID: "stays", Want: []Outcome{"stays"}, Run: func(p *Play) (Outcome, error) {
	if err := p.Timers(map[Timer]time.Duration{UDP: 2 * time.Second}); err != nil {
		return "", err
	}
	if _, err := p.Send(A); err != nil {
		return "", err
	}
	if err := p.Pass(time.Second); err != nil {
		return "", err
	}
	n, err := p.Mappings()
	return yes(len(n) == 1, "stays", "ended"), err
}}

// never wants what no world does.
var never = Case{ID: "never", Want: []Outcome{"never"}, Run: stays.Run}

// TestLateness plays cases on machines that lose time: those that lose it in the way of
// the case repeat it with longer times, and only those.
func TestLateness(t *testing.T) {
	const much = 1500 * time.Millisecond
	always := []time.Duration{time.Minute}
	for name, c := range map[string]struct {
		of     Case
		loses  [][]time.Duration // in each attempt
		status Status
		played int
		says   string
	}{
		"in time":                        {stays, nil, Meets, 1, ""},
		"a little late":                  {stays, [][]time.Duration{{700 * time.Millisecond}}, Meets, 1, ""},
		"late once":                      {stays, [][]time.Duration{{much}}, Meets, 2, ""},
		"late for longer times no more":  {stays, [][]time.Duration{{much}, {much}}, Meets, 2, ""},
		"always too late":                {stays, [][]time.Duration{always, always, always, always}, Unexpected, 4, "too busy"},
		"a deviation in time":            {never, nil, Unexpected, 1, `got "stays"`},
		"a deviation that recurs":        {never, [][]time.Duration{{much}}, Unexpected, 2, `got "stays"`},
		"a deviation on a late machine":  {never, [][]time.Duration{{much}, {much}, {much}, {much}}, Unexpected, 4, `got "stays"`},
		"late where only failures count": {Case{ID: "none", Want: []Outcome{"none"}, Run: sendsOnly}, [][]time.Duration{always}, Meets, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				played := 0
				world := func() (World, error) {
					w := &lateWorld{}
					if played < len(c.loses) {
						w.loses = c.loses[played]
					}
					played++
					return w, nil
				}
				r := c.of.play("none", world, 1)
				if said := r.Err != nil && strings.Contains(r.Err.Error(), c.says); r.Status != c.status || played != c.played || said != (c.says != "") {
					t.Errorf("played %d times: %s, %v; expected %d times: %s, %q", played, r.Status, r.Err, c.played, c.status, c.says)
				}
			})
		})
	}
}

func sendsOnly(p *Play) (Outcome, error) {
	_, err := p.Send(A)
	return "none", err
}
