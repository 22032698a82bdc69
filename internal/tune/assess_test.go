package tune

import "testing"

func TestMadeOf(t *testing.T) {
	cases := []struct {
		before, asked, got string
		want               bool
	}{
		{"4096 131072 6291456", "8192", "8192\t131072\t6291456", true},
		{"4096 131072 6291456", "8192 x 5", "8192 131072 6291456", true}, // refused at the second number
		{"4096 131072 6291456", "8193", "8192 131072 6291456", false},
		{"100 150", "100 200", "100 999", false}, // changed since
		{"32768 60999", "40000", "40000 60999", true},
		{"1", "8080,9000-9002,9001", "8080,9000-9002", true},
		{"1", "3,1,2", "1-3", true},
		{"1", "1-3,8", "1-3", false},
		{"1", "5-1", "5", false},
		{"1", "7300", "7200", false},
		{"1", "7300", "7300", true},
		{"1", "", "8080", false},
		{"1", "cubic", "reno", false},
	}
	for _, c := range cases {
		if got := MadeOf(c.before, c.asked, c.got); got != c.want {
			t.Errorf("%q, then %q read back %q: %v", c.before, c.asked, c.got, got)
		}
	}
}
