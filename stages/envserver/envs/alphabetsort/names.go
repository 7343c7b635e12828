package alphabetsort

import "strings"

// firstNames and lastNames are what names are made of; each stands once.
var (
	firstNames = strings.Fields(`Abena Ada Adele Aiko Alan Alma Amara Amir Ana Anders Anya Arjun Asha Astrid Aylin Barbara Bashir Beatriz
		Bela Bianca Boris Bruno Carla Carmen Cecil Chen Chiara Clara Cyrus Dalia Daniel Daria David Diego Dina Dmitri Edda Edgar Elena Elias
		Elif Emil Emma Enzo Erik Esther Eva Farid Fatima Felix Fiona Frida Gaia Georg Gita Greta Gustav Hana Hans Hassan Hedy Helga Henri
		Hiro Hugo Ibrahim Ida Igor Ines Ingrid Irina Isaac Ivan Jack Jana Javier Jelena Jin Johan Josef Juan Julia Kamala Karl Kenji Kofi
		Lars Laura Leila Lena Leo Lin Lise Lotte Lucas Luisa Magda Maja Malik Marco Maria Marta Mateo Mei Milan Mina Mira Mohan Nadia Nico
		Nils Nina Noor Nora Olga Omar Oscar Otto Pablo Paula Pedro Petra Pia Priya Rafael Rana Raul Rita Rosa Ruth Salma Samir Sara Selma
		Sofia Stefan Sven Tamar Tara Theo Tomas Uma Ursula Vera Viktor Wanda Wei Xenia Yara Yuki Yusuf Zara Zeno Zoe`)
	lastNames = strings.Fields(`Abbott Abe Acosta Adler Ahmed Allen Almeida Anand Andersen Aoki Arnold Baker Banerjee Barros Bauer Becker Berg
		Bianchi Blanc Bosch Braun Brown Bruni Calvo Carter Castro Chang Chaudhary Chavez Cohen Conti Costa Cruz Dahl Dang Das Davies Delgado
		Dietrich Dubois Duran Eriksen Esposito Evans Farah Fischer Flores Fontaine Foster Franco Fuchs Gallo Garcia Gomez Graf Greco Gupta
		Haas Hall Hansen Harris Hassani Heller Hoang Hoffmann Horvat Huang Hughes Ibarra Ito Ivanova Jansen Jensen Johnson Joshi Kaiser Kang
		Kapoor Kato Keller Khan Kim Klein Koch Kovac Kowalski Kruger Kumar Lam Lang Larsen Lee Lehmann Leone Lewis Lindgren Lopez Maier
		Marino Martin Meyer Mishra Molina Moreau Morgan Mori Nagy Nakamura Nguyen Nielsen Novak Okafor Olsen Ortega Palmer Park Patel Pereira
		Peters Petrov Pham Popov Quinn Ramos Rao Reyes Ricci Rivera Rossi Roth Russo Sanchez Santos Sato Schmidt Schulz Sharma Silva Singh
		Smith Sokolov Stein Suzuki Tanaka Taylor Torres Tran Turner Ueda Vargas Vogel Wagner Walker Wang Weber Weiss Wood Wright Yamada Yang
		Young Zhang Zhou Ziegler`)
)

// name is a person as the policy writes it: "AdaLovelace".
func name(first, last string) string { return first + last }

// key is what a name is sorted by: its first name, or its last.
func key(name, by string) string {
	at := strings.LastIndexFunc(name, func(r rune) bool { return r >= 'A' && r <= 'Z' })
	if at <= 0 {
		return name
	}
	if by == "first" {
		return name[:at]
	}
	return name[at:]
}
