package collect

import "testing"

func TestParseLocalPorts(t *testing.T) {
	for _, tt := range []struct {
		text, reserved string
		want           int64
	}{
		{"32768\t60999\n", "\n", 28232},
		{"40000 40099", "8080,40010-40019,40050", 89},
		{"40000 40099", "39990-50000", 0},
		{"1024 65535", "70000,x,9-5", 64512},
	} {
		r, err := parseLocalPorts(tt.text, tt.reserved)
		if err != nil || r.ports() != tt.want {
			t.Errorf("%q, reserved %q: %d ports, %v; want %d", tt.text, tt.reserved, r.ports(), err, tt.want)
		}
	}
	for _, text := range []string{"", "5", "9 5", "1 70000", "a b"} {
		if r, err := parseLocalPorts(text, ""); err == nil {
			t.Errorf("%q: %d ports", text, r.ports())
		}
	}
}
