package pipeline

import "testing"

// TestClaimInstance claims names: each goes to one process at a time, and who comes back gets the one it had.
func TestClaimInstance(t *testing.T) {
	dir := t.TempDir()
	claim := func(stage string) (string, func() error) {
		t.Helper()
		name, release, err := ClaimInstance(dir, stage)
		if err != nil {
			t.Fatal(err)
		}
		return name, release
	}
	first, release := claim("scorer")
	second, releaseSecond := claim("scorer")
	other, releaseOther := claim("packer")
	if first == second || other != first {
		t.Errorf("scorers %s and %s, a packer %s", first, second, other)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	again, releaseAgain := claim("scorer")
	if again != first {
		t.Errorf("it was %s and comes back as %s", first, again)
	}
	for _, release := range []func() error{releaseSecond, releaseOther, releaseAgain} {
		if err := release(); err != nil {
			t.Fatal(err)
		}
	}
}
